package gossip

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
)

// Timing tunes how fast changes are noticed. The defaults show a crash to all
// survivors within 5 s and an announced change within a second.
type Timing struct {
	// JoinTimeout is how long a node with join targets waits for the first answer
	// before it serves without. 5 s.
	JoinTimeout time.Duration
	// RejoinInterval is the least time between attempts to reach join targets and
	// lost members that are not in the view; up to as much again is added at
	// random. 1 s.
	RejoinInterval time.Duration
	// DialTimeout bounds connecting to a peer, and each exchange with it. 2 s.
	DialTimeout time.Duration
	// ForgetAfter is how long a lost member's address is tried. 24 h.
	ForgetAfter time.Duration

	// ProbeInterval is the time between two probes that a node sends, 400 ms;
	// ProbeTimeout is how long a direct answer may take, 200 ms. SuspicionMult
	// times ProbeInterval is how long a silent member may still object, 4. (Log10
	// of the members multiplies it from 10 members on.)
	ProbeInterval time.Duration
	ProbeTimeout  time.Duration
	SuspicionMult int
	// GossipInterval is the time between two messages of news, 100 ms.
	GossipInterval time.Duration
	// PushPullInterval is the time between two whole exchanges of state with a
	// random member, 2 s: memberlist's news get lost in bursts, for example when all
	// nodes start at once, and this is what makes that good. It grows from 32
	// members on.
	PushPullInterval time.Duration
	// DeadTime is how long a dead member is kept and still told that it is thought
	// dead. 15 s.
	DeadTime time.Duration
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.JoinTimeout, 5 * time.Second},
		{&t.RejoinInterval, time.Second},
		{&t.DialTimeout, 2 * time.Second},
		{&t.ForgetAfter, 24 * time.Hour},
		{&t.ProbeInterval, 400 * time.Millisecond},
		{&t.ProbeTimeout, 200 * time.Millisecond},
		{&t.GossipInterval, 100 * time.Millisecond},
		{&t.PushPullInterval, 2 * time.Second},
		{&t.DeadTime, 15 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if t.SuspicionMult == 0 {
		t.SuspicionMult = 4
	}
	return t
}

func (t Timing) validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"JoinTimeout", t.JoinTimeout},
		{"RejoinInterval", t.RejoinInterval},
		{"DialTimeout", t.DialTimeout},
		{"ForgetAfter", t.ForgetAfter},
		{"ProbeInterval", t.ProbeInterval},
		{"ProbeTimeout", t.ProbeTimeout},
		{"GossipInterval", t.GossipInterval},
		{"PushPullInterval", t.PushPullInterval},
		{"DeadTime", t.DeadTime},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("gossip: Timing.%s is %v: want a positive duration, or 0 for the default", d.field, d.value))
		}
	}
	if t.ProbeTimeout > t.ProbeInterval {
		errs = append(errs, fmt.Errorf("gossip: Timing.ProbeTimeout is %v: want at most ProbeInterval, %v", t.ProbeTimeout, t.ProbeInterval))
	}
	if t.SuspicionMult < 0 {
		errs = append(errs, fmt.Errorf("gossip: Timing.SuspicionMult is %d: want a positive number, or 0 for the default", t.SuspicionMult))
	}
	return errors.Join(errs...)
}

// apply sets what memberlist has of t.
func (t Timing) apply(m *memberlist.Config) {
	m.TCPTimeout = t.DialTimeout
	m.ProbeInterval = t.ProbeInterval
	m.ProbeTimeout = t.ProbeTimeout
	m.SuspicionMult = t.SuspicionMult
	m.GossipInterval = t.GossipInterval
	m.PushPullInterval = t.PushPullInterval
	m.GossipToTheDeadTime = t.DeadTime

	// Both stretch detection when confirmations or answers are missing. That is
	// sensible with hundreds of nodes, but with memberlist's 6 and 8 a node cut off
	// from a small cluster takes half a minute to notice. Twice is what 5 s leave
	// room for.
	m.SuspicionMaxTimeoutMult = 2
	m.AwarenessMaxMultiplier = 2
}
