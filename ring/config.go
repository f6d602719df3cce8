package ring

import (
	"errors"
	"fmt"
	"math"
)

// Placement numbers the way in which this package places partitions: library,
// hash, naming of the points on the ring, and the defaults below. It is raised
// only when one of them changes. Members advertise it, and members with
// different numbers refuse each other: they would send keys to different owners.
const Placement = 1

// Defaults of Config. With them the fullest of 3 to 12 members owns at most 1.10
// of the average, rounded up. The emptiest depends on the names: at 7 members it
// mostly owns 0.85 to 0.95, now and then 0.75.
const (
	DefaultPartitions  = 1021
	DefaultReplication = 400
	DefaultLoad        = 1.10
)

// Bounds of Config.
const (
	MaxPartitions  = 1 << 20
	MaxReplication = 10_000
	MaxLoad        = 10.0
	// MaxMembers is what a table can hold: owners are stored in 16 bits.
	MaxMembers = math.MaxUint16
)

// Config places partitions on members. All nodes of a cluster must agree on it.
// The zero value stands for the defaults.
type Config struct {
	// Partitions is the number of slices of the key space, 1 to MaxPartitions.
	// Zero means DefaultPartitions. A prime spreads best.
	Partitions int
	// Replication is the number of points each member has on the ring, 1 to
	// MaxReplication. Zero means DefaultReplication. More points spread more
	// evenly and take longer to build.
	Replication int
	// Load is the most that one member may own, as a ratio of the average,
	// 1 to MaxLoad. Zero means DefaultLoad. It is rounded up to whole partitions.
	Load float64
}

// WithDefaults returns c with its zero fields set to the defaults.
func (c Config) WithDefaults() Config {
	if c.Partitions == 0 {
		c.Partitions = DefaultPartitions
	}
	if c.Replication == 0 {
		c.Replication = DefaultReplication
	}
	if c.Load == 0 {
		c.Load = DefaultLoad
	}
	return c
}

// Validate reports every field that is out of range, after the defaults. The
// library below does not check: it loops on a negative partition count and
// panics when the load leaves less room than there are partitions.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	if c.Partitions < 1 || c.Partitions > MaxPartitions {
		errs = append(errs, fmt.Errorf("ring: Partitions is %d: want 1 to %d", c.Partitions, MaxPartitions))
	}
	if c.Replication < 1 || c.Replication > MaxReplication {
		errs = append(errs, fmt.Errorf("ring: Replication is %d: want 1 to %d points per member", c.Replication, MaxReplication))
	}
	// Written so that NaN fails too.
	if !(c.Load >= 1 && c.Load <= MaxLoad) {
		errs = append(errs, fmt.Errorf("ring: Load is %v: want 1 to %v times the average", c.Load, MaxLoad))
	}
	return errors.Join(errs...)
}
