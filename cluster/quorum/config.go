package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// These two set how fast a crash is noticed. Time line of a crash, from the last heartbeat of the crashed owner, with the
// defaults on a fast network:
//
//	  0 ms  the owner's last heartbeat arrives; it crashes at most Heartbeat (100 ms) later
//	600 ms  Timeout: if it is alive but isolated, it has lost quorum by now and decides nothing
//	660 ms  1.1 × Timeout: the same by any clock, see expiry
//	700 ms  Timeout + Heartbeat: it counts as lost, see silence, and the ring is built without it
//	720 ms  the assigned owners send probes at their next turn, 20 ms later (100 ms if they were idle); see package handoff
//	        then two round trips for probe and claim, and one more to fetch the state if they have no replica
//
// So crash -> takeover = Timeout + Heartbeat + a turn + 2 or 3 round trips: 0.71 s in test/transcripts/testdata/takeover.txt,
// and up to 1.2 s with idle nodes and messages that are lost and resent (100 ms each). Where voters respond slowly, the
// acknowledgements count for up to three times Timeout (see ackTTL), and the takeover is as much later.
const (
	// Heartbeat is the time between two heartbeats to one peer.
	Heartbeat = 100 * time.Millisecond
	// DefaultTimeout is the default of Config.Timeout.
	DefaultTimeout = 600 * time.Millisecond
)

const (
	// grace is how long a process restarted within a voter set makes no promises. It is more than 1.1 × Config.Timeout.
	grace = 2 * time.Second
	// foundAfter is how long a process without a voter set waits for the members of its view to report whether they know one.
	// With Expect 1 it waits as long as they are in the view.
	foundAfter = 5 * time.Second
)

// Config configures a Machine. Zero durations mean their defaults.
type Config struct {
	// Self is this process. Name and Boot are required.
	Self message.Peer
	// Record is the record on disk, zero if none. A process that starts with a voter set founds none.
	Record message.Record
	// Disk: the caller writes the records that Unstored returns. If false, every record counts as written at once.
	Disk bool
	// Expect is the number of processes that found a voter set together, this one included; all
	// must have the same number. It must be more than half of the processes that ever start without
	// a set. 0: this process only joins a set. A process that is the only voter of its Record
	// decides again when it hears as many, or two; see Machine.MayFound.
	Expect int
	// Timeout is the minimum time for which an acknowledged heartbeat counts towards quorum, from its sending (F in
	// docs/internals/protocol.md). It is up to three times longer where voters respond slowly. A member counts as lost after a
	// silence of this time plus Heartbeat. 0 means DefaultTimeout.
	Timeout time.Duration
	// Roles: the members are regions, see roles.go.
	Roles bool
	// ForgetAfter is the silence after which a member is removed from the voter set. 0 means 10 min.
	ForgetAfter time.Duration
}

// Validate reports the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.Self.Name == "":
		return errors.New("quorum: Self.Name: empty; want the node's name")
	case c.Self.Boot == "":
		return errors.New("quorum: Self.Boot: empty; want the process's boot id")
	case !c.Record.Set.Zero() && !validSet(c.Record.Set):
		return fmt.Errorf("quorum: Record.Set: %+v; want an ID and sorted names, each once, or no set", c.Record.Set)
	case c.Expect < 0:
		return fmt.Errorf("quorum: Expect: %d; want a number of processes, or 0 to found no set", c.Expect)
	}
	c = c.withDefaults()
	switch {
	case c.ForgetAfter < 0:
		return fmt.Errorf("quorum: ForgetAfter: %v; want a positive duration, or 0 for the default", c.ForgetAfter)
	case c.Timeout <= Heartbeat || expiry(int64(c.Timeout)) >= int64(grace):
		return fmt.Errorf("quorum: Timeout: %v; want more than %v, and 1.1 times it less than %v", c.Timeout, Heartbeat, grace)
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.ForgetAfter = cmp.Or(c.ForgetAfter, 10*time.Minute)
	return c
}
