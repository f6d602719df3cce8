package rules

import (
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Replication says when a standby learns of a charge.
type Replication uint8

const (
	// ReplicateNone keeps counters on their holder only.
	ReplicateNone Replication = iota
	// ReplicateAsync answers first and replicates a moment later.
	ReplicateAsync
	// ReplicateSync answers when the standby has the charge.
	ReplicateSync
)

// defaultLostState is the on_lost_state of rules that do not say. Who would rather deny a check than admit one too many,
// or waits for a replica, wants no counter to begin anew. In eventual mode nodes decide alone, and there is no counter to miss.
func defaultLostState(r *Rule) OnLostState {
	if r.Consistency != Eventual &&
		(r.OnFailure == FailClosed || r.OnPartition == FailClosed || r.Replication == ReplicateSync) {
		return LostDeny
	}
	return LostFresh
}

func (r Replication) String() string { return nameOf(replications, r) }

// asyncFrom is the shortest period that is replicated unless the rule says otherwise.
const asyncFrom = 10 * time.Second

// DefaultReplication is that of rules that do not say, and of checks that bring their
// own limits: async where losing a counter hurts for long, which is where the longest
// period is ten seconds or more, else none.
func DefaultReplication(l *bucket.Limits) Replication {
	for i := range l.Len() {
		// A calendar unit is a minute at least. What is unlimited counts nothing.
		if one := l.At(i); !one.Unlimited && (one.Align == bucket.AlignCalendar || one.Period >= asyncFrom) {
			return ReplicateAsync
		}
	}
	return ReplicateNone
}
