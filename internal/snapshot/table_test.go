package snapshot

import (
	"io"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestTableComesBack spends limits of every kind in a table, writes it, and reads it into another
// table after some time down: each key gets what it would get had the node never stopped.
func TestTableComesBack(t *testing.T) {
	const partitions, keys = 8, 300
	start := time.Unix(1_790_000_000-1_790_000_000%3600, 0) // a full hour
	var sets []*bucket.Limits
	for a := bucket.TokenBucket; a <= bucket.SlidingWindow; a++ {
		set, err := bucket.NewLimits(bucket.Limit{Algorithm: a, Count: 60, Period: time.Minute})
		do(t, err)
		sets = append(sets, set)
	}
	key := func(n int) bucket.Key { return bucket.Key{Hi: 7, Lo: uint64(n)} }
	// admitted takes all that key n may have at now.
	admitted := func(table *bucket.Table, now time.Time, n int) (count int) {
		r := bucket.Request{Key: key(n), Limits: sets[n%len(sets)], Cost: 1}
		for table.Do(now.UnixNano(), &r).Allowed {
			count++
		}
		return count
	}

	for _, down := range []time.Duration{0, time.Second, 10 * time.Second, 45 * time.Second, time.Minute, time.Hour, 10 * 365 * 24 * time.Hour} {
		t.Run(down.String(), func(t *testing.T) {
			config := bucket.Config{Shards: partitions, MaxEntries: 10_000}
			before, err := bucket.NewTable(config)
			do(t, err)
			for n := range keys {
				if got := admitted(before, start, n); got != 60 {
					t.Fatalf("key %d: %d at first", n, got)
				}
			}
			d := openDir(t, t.TempDir())
			saved := start.Add(time.Second)
			saveTable(t, d, before, partitions, saved)

			after, err := bucket.NewTable(config)
			do(t, err)
			back := saved.Add(down)
			loadTable(t, d, after, partitions, back)
			for n := range keys {
				if got, want := admitted(after, back, n), admitted(before, back, n); got != want {
					t.Errorf("key %d (%v): %d admitted, want %d", n, sets[n%len(sets)].At(0).Algorithm, got, want)
				}
			}
		})
	}

	t.Run("clock set back", func(t *testing.T) {
		before, err := bucket.NewTable(bucket.Config{Shards: partitions})
		do(t, err)
		for n := range keys {
			admitted(before, start, n)
		}
		d := openDir(t, t.TempDir())
		saveTable(t, d, before, partitions, start)
		after, err := bucket.NewTable(bucket.Config{Shards: partitions})
		do(t, err)
		back := start.Add(-MaxAhead)
		loadTable(t, d, after, partitions, back)
		for n := range keys {
			if got := admitted(after, back, n); got != 0 {
				t.Errorf("key %d (%v): %d admitted, want none", n, sets[n%len(sets)].At(0).Algorithm, got)
			}
		}
	})
}

func saveTable(t *testing.T, d *Dir, table *bucket.Table, partitions int, now time.Time) {
	t.Helper()
	w, err := d.Create(Header{Name: "n", Begun: now, Partitions: partitions})
	do(t, err)
	defer w.Abort()
	var keys []bucket.KeyAt
	var im bucket.Image
	for p := range partitions {
		do(t, w.Section(Section{Partition: p, Owned: true, Complete: true, At: now}))
		keys = table.Keys(p, keys[:0])
		for rest := keys; len(rest) > 0; {
			n := min(10, len(rest))
			im = bucket.Image{Limits: im.Limits[:0], Data: im.Data[:0]}
			table.Export(now.UnixNano(), p, rest[:n], &im)
			do(t, w.Image(&im))
			rest = rest[n:]
		}
	}
	do(t, w.Commit())
}

func loadTable(t *testing.T, d *Dir, table *bucket.Table, partitions int, now time.Time) {
	t.Helper()
	r, err := d.Read(Want{Name: "n", Partitions: partitions, Now: now})
	do(t, err)
	defer r.Close()
	for {
		s, err := r.Next()
		if err == io.EOF {
			return
		}
		do(t, err)
		for {
			im, err := r.Image()
			if err == io.EOF {
				break
			}
			do(t, err)
			do(t, table.Import(now.Add(-s.Age(now)).UnixNano(), s.Partition, im, im.Data, im.Counters, false))
		}
	}
}
