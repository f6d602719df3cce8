package topk

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/bucket"
	_ "github.com/sluicecluster/sluice/test/seeded"
)

// called is a Namer that says how often it was asked.
type called struct {
	text  string
	times *int
}

func (c called) AppendName(dst []byte) []byte {
	if c.times != nil {
		*c.times++
	}
	return append(dst, c.text...)
}

// key spreads numbers over shards.
func key(n int) bucket.Key { return bucket.Key{Hi: uint64(n) * 0x9e3779b97f4a7c15, Lo: uint64(n)} }

func named(n int) Namer { return called{text: strconv.Itoa(n)} }

func anybody([]byte) bool { return true }

// TestSketchBounds holds the promises of Sketch to exact counts, over any stream.
func TestSketchBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 20).Draw(t, "size")
		s := NewSketch(size)
		exact := map[bucket.Key]uint64{}
		var total uint64
		for range rapid.IntRange(0, 400).Draw(t, "length") {
			n := rapid.IntRange(0, 40).Draw(t, "key")
			if rapid.Bool().Draw(t, "hot") {
				n %= 3
			}
			w := rapid.Uint64Range(1, 16).Draw(t, "weight")
			s.Add(key(n), w, named(n))
			exact[key(n)] += w
			total += w
		}
		if len(s.places) > size || len(s.index) != len(s.places) {
			t.Fatalf("%d places and %d in the index, of %d", len(s.places), len(s.index), size)
		}
		for i, p := range s.places {
			if s.index[p.key] != int32(i) || i > 0 && s.places[(i-1)/2].count > p.count {
				t.Fatalf("place %d is out of order", i)
			}
			if want := exact[p.key]; p.count < want || p.count-p.over > want {
				t.Fatalf("%v came %d times, the sketch says %d to %d", p.key, want, p.count-p.over, p.count)
			}
			if p.over*uint64(size) > total {
				t.Fatalf("an error of %d in a stream of %d and %d places", p.over, total, size)
			}
			if string(p.name) != strconv.FormatUint(p.key.Lo, 10) {
				t.Fatalf("%v is called %s", p.key, p.name)
			}
		}
		for k, n := range exact {
			if _, ok := s.index[k]; !ok && (n > s.floor() || n*uint64(size) > total) {
				t.Fatalf("%v came %d times of %d and has none of %d places", k, n, total, size)
			}
		}
	})
}

// TestWindow counts keys of a skewed stream exactly beside the window, which forgets what is old.
func TestWindow(t *testing.T) {
	const slot = 20 * time.Second
	w := NewWindow(slot, 64*shards)
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.2, 1, 50_000)
	type hit struct {
		at time.Duration
		n  int
	}
	var stream []hit
	for at := time.Duration(0); at < 3*time.Minute; at += 2 * time.Millisecond {
		n := int(zipf.Uint64())
		if at > time.Minute {
			n += 7 // others are hot now
		}
		w.Add(at, key(n), 1, named(n))
		stream = append(stream, hit{at, n})
	}
	for _, now := range []time.Duration{3*time.Minute - time.Millisecond, 3*time.Minute + 10*time.Second, 3*time.Minute + 30*time.Second} {
		covers := w.Covers(now)
		if covers < 3*slot || covers > 4*slot {
			t.Errorf("at %v it covers %v", now, covers)
		}
		exact := map[int]uint64{}
		for _, h := range stream {
			if h.at >= now-covers {
				exact[h.n]++
			}
		}
		best := make([]int, 0, len(exact))
		for n := range exact {
			best = append(best, n)
		}
		slices.SortFunc(best, func(a, b int) int { return cmp.Compare(exact[b], exact[a]) })
		top := w.Top(now, 10, anybody)
		if len(top) != 10 {
			t.Fatalf("at %v: %d keys", now, len(top))
		}
		for i, e := range top {
			n, _ := strconv.Atoi(string(e.Name))
			if want := exact[n]; e.Count < want || e.Count-e.Error > want {
				t.Errorf("at %v: %d came %d times, told %d less at most %d", now, n, want, e.Count, e.Error)
			}
			if i < 5 && n != best[i] {
				t.Errorf("at %v: place %d is %d, want %d", now, i, n, best[i])
			}
		}
	}
	if top := w.Top(5*time.Minute, 10, anybody); len(top) != 0 {
		t.Errorf("two minutes later: %v", top)
	}
	if got := w.Covers(5 * time.Second); got != 5*time.Second {
		t.Errorf("after 5 s it covers %v", got)
	}
}

// TestWindowAddsSlots: a key that only some slots name is told with what the others may have seen.
func TestWindowAddsSlots(t *testing.T) {
	w := NewWindow(time.Second, shards) // one place in each shard
	a, b := bucket.Key{Lo: 1}, bucket.Key{Lo: 2}
	w.Add(0, a, 10, named(1))
	w.Add(time.Second, a, 5, named(1))
	w.Add(time.Second, b, 1, named(2)) // takes the place, and 5 with it
	got := w.Top(time.Second, 2, anybody)
	want := []Entry{{Key: a, Name: []byte("1"), Count: 16, Error: 6}, {Key: b, Name: []byte("2"), Count: 16, Error: 15}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	if got := w.Top(time.Second, 1, func(name []byte) bool { return string(name) == "2" }); len(got) != 1 || got[0].Key != b {
		t.Errorf("of those called 2: %v", got)
	}
}

// TestAddAllocatesNothing, once there is room for the names, and names only what gets a place.
func TestAddAllocatesNothing(t *testing.T) {
	w := NewWindow(time.Hour, 32*shards)
	long := make([]Namer, 5000)
	for i := range long {
		long[i] = called{text: strings.Repeat("x", 40) + strconv.Itoa(i)}
		w.Add(0, key(i), 1, long[i])
	}
	i := 0
	if n := testing.AllocsPerRun(2000, func() { w.Add(0, key(i%5000), 1, long[i%5000]); i++ }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	times := 0
	for range 10 {
		w.Add(0, key(9999), 1, called{"hot", &times})
	}
	if times != 1 {
		t.Errorf("named %d times", times)
	}
}

func TestWindowTogether(t *testing.T) {
	w := NewWindow(time.Second, 8*shards)
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 2000 {
				w.Add(time.Duration(i)*time.Millisecond, key(i%20+g), 1, named(i%20+g))
				if i%100 == 0 {
					w.Top(time.Duration(i)*time.Millisecond, 5, anybody)
				}
			}
		})
	}
	group.Wait()
	var sum uint64
	for _, e := range w.Top(2*time.Second, 100, anybody) {
		sum += e.Count
	}
	if sum != 8000 {
		t.Errorf("%d counted, want 8000", sum)
	}
}

func BenchmarkAdd(b *testing.B) {
	w := NewWindow(time.Hour, 2048)
	names := make([]Namer, 1<<16)
	for i := range names {
		names[i] = called{text: "api user=" + strconv.Itoa(i)}
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.Int(); pb.Next(); i++ {
			w.Add(0, key(i%len(names)), 1, names[i%len(names)])
		}
	})
}
