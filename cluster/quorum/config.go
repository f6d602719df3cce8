package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Config configures a Machine. Zero durations mean their defaults.
type Config struct {
	// Self is this process. Name and Boot are required.
	Self message.Peer
	// Record is the record on disk, zero if none. A process that starts with a voter set founds none.
	Record message.Record
	// Disk: the caller writes the records that Unstored returns. If false, every record counts as written at once.
	Disk bool
	// Expect is the number of processes that found a voter set together, this one included; all must have the same number.
	// It must be more than half of the processes that ever start without a set. 0: this process only joins a set.
	Expect int
	// Heartbeat is the time between two heartbeats to one peer. 0 means 100 ms.
	Heartbeat time.Duration
	// Timeout is the minimum time for which an acknowledged heartbeat counts towards quorum, from its sending (F in
	// docs/protocol.md). It is up to three times longer where voters respond slowly. 0 means 600 ms.
	Timeout time.Duration
	// Dead is the silence after which a member counts as lost; longer if its lease is. 0 means 700 ms.
	Dead time.Duration
	// Grace is how long a process restarted within a voter set makes no promises. It must be more than 1.1 × Timeout. 0
	// means 2 s.
	Grace time.Duration
	// ForgetAfter is the silence after which a member is removed from the voter set. 0 means 10 min.
	ForgetAfter time.Duration
	// FoundAfter is how long a process without a voter set waits for the members of its view to report whether they know
	// one. With Expect 1 it waits as long as they are in the view. 0 means 5 s.
	FoundAfter time.Duration
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
