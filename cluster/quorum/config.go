package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Config says who the machine is and how patient. Zero durations are their defaults.
type Config struct {
	// Self is this process. Name and Boot are required.
	Self message.Peer
	// Record is what the disk has, zero if nothing. A process that starts with a set founds none.
	Record message.Record
	// Disk: what Unstored returns is put on disk. Without, nothing waits for it.
	Disk bool
	// Expect is with how many processes a set is founded, this one included, all of which must expect as many. It must be more than half of
	// the processes that ever start without a set. 0: this process only joins a set.
	Expect int
	// Heartbeat is the time between two heartbeats to one peer. 0 means 100 ms.
	Heartbeat time.Duration
	// Timeout is how long an acknowledged heartbeat counts towards the quorum at least, from its sending
	// (F in docs/protocol.md). Where voters answer slowly it is longer, up to three times. 0 means 600 ms.
	Timeout time.Duration
	// Dead is the silence after which a member does not count as living, longer where its lease is. 0 means 700 ms.
	Dead time.Duration
	// Grace is how long a process that was restarted within a set promises nothing.
	// It must be more than 1.1 × Timeout. 0 means 2 s.
	Grace time.Duration
	// ForgetAfter is how long a member is missed before it is voted out. 0 means 10 min.
	ForgetAfter time.Duration
	// FoundAfter is how long a process without a set waits for members of its view to
	// say whether they know one. One with Expect 1 waits for as long as it sees them. 0 means 5 s.
	FoundAfter time.Duration
}

// Validate reports the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Self.Name == "":
		return errors.New("quorum: Self.Name: empty; want the node's name")
	case c.Self.Boot == "":
		return errors.New("quorum: Self.Boot: empty; want the process's boot id")
	case !c.Record.Set.Zero() && !sound(c.Record.Set):
		return fmt.Errorf("quorum: Record.Set: %+v; want an ID and sorted names, each once, or no set", c.Record.Set)
	case c.Expect < 0:
		return fmt.Errorf("quorum: Expect: %d; want a number of processes, or 0 to found no set", c.Expect)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"Heartbeat", c.Heartbeat},
		{"Timeout", c.Timeout},
		{"Dead", c.Dead},
		{"Grace", c.Grace},
		{"ForgetAfter", c.ForgetAfter},
		{"FoundAfter", c.FoundAfter},
	} {
		if f.d < 0 {
			return fmt.Errorf("quorum: %s: %v; want a positive duration, or 0 for the default", f.name, f.d)
		}
	}
	c = c.withDefaults()
	switch {
	case c.Timeout <= c.Heartbeat:
		return fmt.Errorf("quorum: Timeout: %v; want more than Heartbeat, which is %v", c.Timeout, c.Heartbeat)
	case c.Dead <= c.Heartbeat:
		return fmt.Errorf("quorum: Dead: %v; want more than Heartbeat, which is %v", c.Dead, c.Heartbeat)
	case int64(c.Grace) <= expiry(int64(c.Timeout)):
		return fmt.Errorf("quorum: Grace: %v; want more than 1.1 × Timeout, which is %v", c.Grace, time.Duration(expiry(int64(c.Timeout))))
	}
	return nil
}

func (c Config) withDefaults() Config {
	for _, f := range []struct {
		d     *time.Duration
		value time.Duration
	}{
		{&c.Heartbeat, 100 * time.Millisecond},
		{&c.Timeout, 600 * time.Millisecond},
		{&c.Dead, 700 * time.Millisecond},
		{&c.Grace, 2 * time.Second},
		{&c.ForgetAfter, 10 * time.Minute},
		{&c.FoundAfter, 5 * time.Second},
	} {
		if *f.d == 0 {
			*f.d = f.value
		}
	}
	return c
}
