package lease

import (
	"fmt"
	"time"
)

// Config says when a key is hot, and how its leases are dealt with. Zero values are the defaults.
type Config struct {
	// Hot is how many checks of a key that another node holds make it hot, within HotWindow. 0 means 50, in 100 ms.
	Hot       int
	HotWindow time.Duration
	// Life is the lifetime that is asked for, less where the limits lend for less. 0 means 100 ms, which is the most: a
	// holder remembers for not much longer that it has lent.
	Life time.Duration
	// Ahead is how much of the demand is borrowed ahead, as the time that it lasts. 0 means 30 ms.
	Ahead time.Duration
	// Every is the least time between two requests for a lease of one key. 0 means 10 ms.
	Every time.Duration
}

// Validate reports the first field that is wrong.
func (c Config) Validate() error {
	if c.Hot < 0 {
		return fmt.Errorf("lease: Hot: %d; want a number of checks, or 0 for the default", c.Hot)
	}
	if c.Life > maxLife {
		return fmt.Errorf("lease: Life: %v; want at most %v", c.Life, maxLife)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"HotWindow", c.HotWindow}, {"Life", c.Life}, {"Ahead", c.Ahead}, {"Every", c.Every}} {
		if f.d < 0 || f.d > time.Minute {
			return fmt.Errorf("lease: %s: %v; want up to a minute, or 0 for the default", f.name, f.d)
		}
	}
	return nil
}

// WithDefaults returns c with its defaults in.
func (c Config) WithDefaults() Config {
	if c.Hot == 0 {
		c.Hot = 50
	}
	for _, f := range []struct {
		d  *time.Duration
		or time.Duration
	}{{&c.HotWindow, 100 * time.Millisecond}, {&c.Life, 100 * time.Millisecond}, {&c.Ahead, 30 * time.Millisecond}, {&c.Every, 10 * time.Millisecond}} {
		if *f.d == 0 {
			*f.d = f.or
		}
	}
	return c
}

// Moments of a lease's life that follow from nothing else.
const (
	maxLife = 100 * time.Millisecond
	// slice is the time in which demand is counted before it is averaged.
	slice = 20 * time.Millisecond
	// longWait is the longest that a borrower waits before it asks again, and that a key is left alone whose
	// checks are larger than what can be borrowed.
	longWait = 100 * time.Millisecond
	// idle is how long a key may go unasked until its lease ends.
	idle = 200 * time.Millisecond
	// closing is how long before its end what is left of a grant is returned, so that it arrives in time.
	closing = 25 * time.Millisecond
	// remembered is how long a borrower's demand counts that has not asked again, and the key as lent. It is
	// longer than longWait, and than any lease lasts.
	remembered = 150 * time.Millisecond
)
