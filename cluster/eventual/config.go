package eventual

import (
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

const (
	// Period is how often what was asked for is reported.
	Period = 50 * time.Millisecond
	// sameWindow is how far apart the end of one window may seem to be by the clocks of two owners, of which the second has
	// got it from the first. It is less than half of the shortest window.
	sameWindow = 400 * time.Millisecond
	// Fresh is how old what a node knows of a key may be for it to begin another window by itself.
	Fresh = time.Second
	// Recent is how long a process counts as one of those who share a key, after its last report.
	Recent = time.Second
	// Idle is how long a key that nobody asks for is remembered.
	Idle = 10 * time.Second
	// LeastPeriod is the shortest window that can be decided so: in a shorter one too much would be
	// admitted between two reports.
	LeastPeriod = time.Second
)

// MaxSum is the highest sum that is told of.
const MaxSum = 1 << 61

// never is before all times.
const never = math.MinInt64

// Serves reports whether r can be decided in eventual mode, if its rule says so.
func Serves(r *bucket.Request) bool {
	switch r.Verb {
	case bucket.Check, bucket.Read, bucket.Charge:
	default: // what gives back is for the holder: sums only grow
		return false
	}
	return !r.Drain && r.Reserve == 0 && r.Limits.Windowed()
}
