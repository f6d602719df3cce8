package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/tracing"
	"github.com/sluicecluster/sluice/ring"
)

const (
	// giveBackTimeout bounds how long a node tries to give a charge back to another. Owners forget them after undoableFor.
	giveBackTimeout = 2 * time.Second
	// sweepPeriod is the time in which all counters are looked at once, to drop expired ones.
	sweepPeriod = time.Minute
	// shareKeys caps the counters of shares, and the keys with deferred charges.
	shareKeys = 100_000
)

// Peers reaches other nodes.
type Peers interface {
	// Call sends records to the node at addr and waits until replies are filled in, one for each. Its errors wrap
	// check.ErrUnsent, check.ErrAmbiguous or check.ErrOverloaded; any other counts as ambiguous. An error is about the
	// records whose reply has no Status; other replies count all the same. After it has returned, nothing reads records
	// or writes to replies.
	Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error
	// Post sends a message to the node at addr. It never blocks, and may drop it.
	Post(addr string, e message.Envelope)
	// HangUp ends the calls to addr that are in flight: that node is not heard any more.
	HangUp(addr string)
	// Retain closes the connections to all other addresses.
	Retain(addrs []string)
}

// Config configures a Node. Zero values of optional fields are their defaults.
type Config struct {
	// Name and Boot are this process's, as in its own member.Member. Required.
	Name, Boot string
	// Ring places partitions. All nodes of a cluster must agree on it, and the bucket.Table given to New must have as
	// many shards as it has partitions.
	Ring ring.Config
	// Peers is required.
	Peers Peers
	// Regions knows the clusters of other regions, of keys whose limits have a home. Nil: there is one region.
	Regions Regions
	// Clock returns Unix time in ns. It never steps back and runs on while the machine sleeps. Nil is the wall clock at
	// the start plus the time that has passed since.
	Clock func() int64
	// CheckTimeout bounds the time that a batch waits for owners when its context has no deadline or a later one. 0 means
	// 1.5 s: a takeover after a crash takes up to 1.2 s, see quorum.DefaultTimeout.
	CheckTimeout time.Duration
	// QuorumTimeout is quorum.Config.Timeout: how long an acknowledged heartbeat gives a node quorum. 0 means
	// quorum.DefaultTimeout; at most 1.8 s. It must be the same at all nodes of a cluster. A longer one tolerates machines
	// that stall, and leaves a crashed node's keys without an owner for longer: it is for tests.
	QuorumTimeout time.Duration
	// ForgetAfter is how long a voter is missed before it is voted out. 0 means 10 minutes.
	ForgetAfter time.Duration
	// MaxClockSkew is how far this node's clock may be off the voters' before its windows follow theirs. 0 means 500 ms.
	MaxClockSkew time.Duration
	// LostHold is how long counters that were lost in a takeover without state count as spent under rules with
	// on_lost_state: deny. 0 means until they are back, or nothing that they may have counted counts any more.
	LostHold time.Duration
	// Hot is how many checks of a key of another node within 100 ms make it hot. 0 means 50.
	Hot int
	// Expect is the number of nodes that found a voter set, this one included, all of which must expect as many. It must
	// be more than half of the nodes that ever start without a set. 0: this node only joins a set.
	Expect int
	// LastAnswers is the number of limits of keys whose owner's last answer is remembered. 0 means 65,536.
	LastAnswers int
	// Replicas is how many other nodes keep a replica of each partition that this node owns, where there are as many: 1 or
	// 2. 0 means 1.
	Replicas int
	// Recorded is what Load has found in the node's data directory, the zero value if nothing usable. Nil: the node has
	// none.
	Recorded *Recorded
	// Store writes the node's part in the voter set to disk, and returns when it survives a power cut. The node neither
	// acknowledges nor votes for a version before. Nil: the node has no disk.
	Store func(message.Record) error
	// Tracer records calls to other nodes for batches that have a Trace. Nil records nothing.
	Tracer *tracing.Tracer
	// Log gets a line when the state of this node changes. Nil logs nothing.
	Log *slog.Logger
}

// Validate reports the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.Name == "":
		return errors.New("cluster: Name: empty; want the node's name")
	case c.Boot == "":
		return errors.New("cluster: Boot: empty; want the process's boot id")
	case c.Peers == nil:
		return errors.New("cluster: Peers: nil; want a way to other nodes")
	case c.Expect < 0:
		return fmt.Errorf("cluster: Expect: %d; want a number of nodes, or 0 to found no set", c.Expect)
	case c.LastAnswers < 0:
		return fmt.Errorf("cluster: LastAnswers: %d; want a number of limits, or 0 for the default", c.LastAnswers)
	case c.Replicas < 0 || c.Replicas > 2:
		return fmt.Errorf("cluster: Replicas: %d; want 1 or 2, or 0 for the default", c.Replicas)
	case c.Hot < 0:
		return fmt.Errorf("cluster: Hot: %d; want a number of checks, or 0 for the default", c.Hot)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"CheckTimeout", c.CheckTimeout}, {"QuorumTimeout", c.QuorumTimeout}, {"MaxClockSkew", c.MaxClockSkew},
		{"ForgetAfter", c.ForgetAfter}, {"LostHold", c.LostHold},
	} {
		if f.d < 0 {
			return fmt.Errorf("cluster: %s: %v; want a positive duration, or 0 for the default", f.name, f.d)
		}
	}
	return c.Ring.Validate()
}

func (c Config) withDefaults() Config {
	c.Ring = c.Ring.WithDefaults()
	if c.Clock == nil {
		c.Clock = steadyClock()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.CheckTimeout = cmp.Or(c.CheckTimeout, 1500*time.Millisecond)
	c.QuorumTimeout = cmp.Or(c.QuorumTimeout, quorum.DefaultTimeout)
	c.MaxClockSkew = cmp.Or(c.MaxClockSkew, 500*time.Millisecond)
	c.Hot = cmp.Or(c.Hot, lease.DefaultHot)
	return c
}

// leastSilence is how long a new member has time to be heard before it counts as lost: as long as one that was heard may be silent.
func (c Config) leastSilence() time.Duration { return c.QuorumTimeout + quorum.Heartbeat }
