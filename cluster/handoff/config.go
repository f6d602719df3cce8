package handoff

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// Intervals and timeouts (ns). Some grow with the round-trip time, see channel.go.
const (
	// flushInterval is the minimum interval between two searches for changes.
	flushInterval = int64(20 * time.Millisecond)
	// stallTimeout is how long a replica node may confirm nothing.
	stallTimeout = int64(500 * time.Millisecond)
	// resendTimeout is the wait for a response.
	resendTimeout = int64(100 * time.Millisecond)
	// fullListInterval is the interval between full lists of owned partitions.
	fullListInterval = int64(time.Second)
	// gatherTimeout is how long a process that is Recorded or has restored a partition waits for all voters before it claims
	// with a majority.
	gatherTimeout = int64(10 * time.Second)
)

// Config configures a Machine. Zero durations mean their defaults.
type Config struct {
	Self       message.Peer
	Partitions int // the table's shards
	Table      *bucket.Table
	// Share calls work for 0 to n-1, on several goroutines if that pays for so many counters in all, and waits. nil is one after the
	// other.
	Share  func(counters, n int, work func(i int))
	Quorum *quorum.Machine
	// Replicas is the wanted number of replicas of each owned partition on other nodes: 1 or 2. 0 means 1.
	Replicas int
	// Gate is the age of the oldest unconfirmed change at which the owner stops deciding, plus the round-trip time to a
	// distant replica. 0 means 50 ms.
	Gate time.Duration
	// Recorded: the process keeps snapshots, so other voters may have later ones, even if it found no usable snapshot
	// itself.
	Recorded bool
	// InitialSyncs is the number of partitions synced to one node at a time. 0 means 16.
	InitialSyncs int
	// Chunk is the number of counters in a transfer batch. 0 means 4096.
	Chunk int
	// Rest is the pause after a transfer batch of initial syncs, as a multiple of the time until its receipt. 0 means 9, so
	// that initial syncs take at most about a tenth of the time.
	Rest int
	// Dropping is called before the counters of a partition are dropped. May be nil.
	Dropping func(partition int)
	// LostHold is how long a takeover without state counts as a loss of counters; see bucket.Table.SetLost. 0 means until
	// the state is back or no lost count can matter any more.
	LostHold time.Duration
	// LostUntil returns until when (Unix ns) counters lost at a given time matter. nil means forever.
	LostUntil func(since int64) int64
}

// Validate reports the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.Self.Name == "" || c.Self.Boot == "":
		return errors.New("handoff: Self: want the process's name and boot id")
	case c.Partitions < 1:
		return fmt.Errorf("handoff: Partitions: %d; want the table's shards", c.Partitions)
	case c.Table == nil:
		return errors.New("handoff: Table: nil; want the counters")
	case c.Quorum == nil:
		return errors.New("handoff: Quorum: nil; want the machine that says who lives")
	case c.Replicas < 0 || c.Replicas > 2:
		return fmt.Errorf("handoff: Replicas: %d; want 1 or 2, or 0 for the default", c.Replicas)
	case c.InitialSyncs < 0:
		return fmt.Errorf("handoff: InitialSyncs: %d; want a number of partitions, or 0 for the default", c.InitialSyncs)
	case c.Rest < 0:
		return fmt.Errorf("handoff: Rest: %d; want a number of times, or 0 for the default", c.Rest)
	case c.Gate < 0:
		return fmt.Errorf("handoff: Gate: %v; want a positive duration, or 0 for the default", c.Gate)
	case c.LostHold < 0:
		return fmt.Errorf("handoff: LostHold: %v; want a positive duration, or 0 for the default", c.LostHold)
	case c.Chunk < 0:
		return fmt.Errorf("handoff: Chunk: %d; want a number of counters, or 0 for the default", c.Chunk)
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Gate = cmp.Or(c.Gate, 50*time.Millisecond)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.InitialSyncs = cmp.Or(c.InitialSyncs, 16)
	c.Chunk = cmp.Or(c.Chunk, 4096)
	c.Rest = cmp.Or(c.Rest, 9)
	if c.Share == nil {
		c.Share = func(_, n int, work func(i int)) {
			for i := range n {
				work(i)
			}
		}
	}
	return c
}
