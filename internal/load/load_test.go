package load

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

func TestKeyNames(t *testing.T) {
	for i, want := range map[uint32]string{0: "user00000000", 12: "user00000012", MaxKeys: "user99999999"} {
		if got := Name("user", i); got != want {
			t.Errorf("key %d is %q, want %q", i, got, want)
		}
	}
}

func TestPickers(t *testing.T) {
	const draws = 400_000
	for _, c := range []struct {
		n    int
		skew float64
	}{{1, 0}, {1, 2}, {2, 1}, {3, 0}, {1000, 0}, {1000, 0.5}, {1000, 0.99}, {1000, 1}, {1000, 1.5}, {1000, MaxSkew}} {
		from, err := NewPickers(c.n, c.skew)
		if err != nil {
			t.Fatal(err)
		}
		pick, again := from.New(7), from.New(7)
		counts := make([]float64, c.n)
		for range draws {
			k := pick.Pick()
			if k != again.Pick() {
				t.Fatalf("%d keys, skew %v: equal seeds choose different keys", c.n, c.skew)
			}
			counts[k]++
		}
		sum := 0.0
		for k := range c.n {
			sum += math.Pow(float64(1+k), -c.skew)
		}
		for k, got := range counts {
			want := draws * math.Pow(float64(1+k), -c.skew) / sum
			if diff := math.Abs(got - want); diff > 6*math.Sqrt(want)+2 {
				t.Errorf("%d keys, skew %v: key %d was drawn %v times, want about %.0f", c.n, c.skew, k, got, want)
			}
		}
	}
	for _, c := range []struct {
		n    int
		skew float64
		want string
	}{{0, 0, "keys"}, {MaxKeys + 1, 0, "keys"}, {5, -1, "skew"}, {5, MaxSkew + 1, "skew"}, {5, math.NaN(), "skew"}} {
		if _, err := NewPickers(c.n, c.skew); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%d keys, skew %v: error %v, want one about %s", c.n, c.skew, err, c.want)
		}
	}
}

// fake answers after a time of its own: keys that end in 0 are denied, those in 1 fail.
type fake struct {
	takes time.Duration
	err   error
	mu    sync.Mutex
	calls int
	nodes map[int]int
	keys  map[string]int
}

func newFake(takes time.Duration, err error) *fake {
	return &fake{takes: takes, err: err, nodes: map[int]int{}, keys: map[string]int{}}
}

func (f *fake) Nodes() int           { return 3 }
func (f *fake) NewCaller(int) Caller { return f }
func (f *fake) Call(ctx context.Context, node int, keys []string, seen *Counts) error {
	f.mu.Lock()
	f.calls++
	f.nodes[node]++
	for _, k := range keys {
		f.keys[k]++
	}
	f.mu.Unlock()
	if !pause.For(ctx, f.takes) {
		return ctx.Err()
	}
	if f.err != nil {
		return f.err
	}
	for _, k := range keys {
		switch k[len(k)-1] {
		case '0':
			seen.Count(Owned, false)
		case '1':
			seen.Fail(1, errors.New("broken"))
		default:
			seen.Count(Forwarded, true)
		}
	}
	return nil
}

func work(t *testing.T, w Work) Work {
	t.Helper()
	keys, err := NewPickers(10, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Keys, w.Prefix = keys, "user"
	return w
}

// Three callers whose calls take 10 ms, in bubble time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(10*time.Millisecond, nil)
		seconds := 0
		var decided, failed int64
		r, err := Run(t.Context(), f, work(t, Work{
			Callers: 3, Batch: 2, Warmup: 95 * time.Millisecond, Duration: 2 * time.Second,
			Progress: func(p Progress) {
				seconds++
				decided += p.Decided.Allowed + p.Decided.Denied
				failed += p.Failed
				if p.Warming || p.Latency != 10*time.Millisecond || p.Elapsed != time.Duration(seconds)*time.Second {
					t.Errorf("progress %+v", p)
				}
			},
		}))
		if err != nil {
			t.Fatal(err)
		}
		all := r.Decided()
		if r.Calls != 600 || r.FailedCalls != 0 || all.Allowed+all.Denied+r.Failed != 1200 || r.Took != 2*time.Second {
			t.Errorf("%+v", r)
		}
		if r.By[Owned].Denied != all.Denied || r.By[Forwarded].Allowed != all.Allowed || all.Denied == 0 || r.Failed == 0 || r.FirstError == nil {
			t.Errorf("%+v", r)
		}
		if p := r.Latency.ValueAtQuantile(50); p < 9_990_000 || p > 10_010_000 {
			t.Errorf("median %d ns", p)
		}
		// The watch sees the warm-up too; calls that end with its last second may come after it.
		if sum := decided + failed; seconds != 2 || sum < 1194 || sum > 1200 {
			t.Errorf("%d seconds with %d and %d checks", seconds, decided, failed)
		}
		if len(f.nodes) != 3 || len(f.keys) != 10 {
			t.Errorf("nodes %v, keys %v", f.nodes, f.keys)
		}
	})
}

// Calls go to the given nodes only, and a check of a key only to a node for which the key is accepted.
func TestRunPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Millisecond, nil)
		accepted := func(node int, key uint32) bool { return node == 2 && key%2 == 0 || node == 1 && key == 5 }
		if _, err := Run(t.Context(), f, work(t, Work{Callers: 2, Batch: 3, Duration: time.Second, Nodes: []int{1, 2}, Accepts: accepted})); err != nil {
			t.Fatal(err)
		}
		if f.nodes[0] != 0 || f.nodes[1] < 800 || f.nodes[2] < 800 || len(f.keys) != 6 || f.keys["user00000005"] != 3*f.nodes[1] {
			t.Errorf("nodes %v, keys %v", f.nodes, f.keys)
		}
	})
}

// With a rate, a call that came late waited as long as the one that was in its way.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Millisecond, nil)
		r, err := Run(t.Context(), f, work(t, Work{Callers: 4, Batch: 5, Rate: 1000, Duration: 10 * time.Second}))
		if err != nil {
			t.Fatal(err)
		}
		if r.Calls < 1995 || r.Calls > 2000 || r.Latency.Max() > 1_010_000 {
			t.Errorf("%d calls, want 2000; the slowest took %d ns", r.Calls, r.Latency.Max())
		}
		f = newFake(20*time.Millisecond, nil)
		if r, err = Run(t.Context(), f, work(t, Work{Callers: 1, Batch: 1, Rate: 100, Duration: 10 * time.Second})); err != nil {
			t.Fatal(err)
		}
		// Half of what is due is done; the last one was due five seconds ago.
		if r.Calls < 495 || r.Calls > 500 || r.Latency.Max() < int64(4900*time.Millisecond) {
			t.Errorf("%d calls, want 500; the slowest took %d ns", r.Calls, r.Latency.Max())
		}
	})
}

func TestRunFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("cause")
		f := newFake(10*time.Millisecond, cause)
		r, err := Run(t.Context(), f, work(t, Work{Callers: 1, Batch: 3, Duration: time.Second}))
		// A call of 10 ms, then a rest of 10 ms.
		if err != nil || r.Calls != 0 || r.FailedCalls != 50 || r.Failed != 150 || !errors.Is(r.FirstError, cause) {
			t.Errorf("every call failed: %+v, %v", r, err)
		}
		if err := Probe(t.Context(), f, "user", 2); !errors.Is(err, ErrNoNode) || !errors.Is(err, cause) || f.nodes[2] == 0 {
			t.Errorf("probe: %v", err)
		}
	})
}

func TestProbe(t *testing.T) {
	f := newFake(0, nil)
	if err := Probe(t.Context(), f, "user", 1); err != nil || f.keys["userprobe0"] != 1 || f.calls != 1 {
		t.Errorf("one node answers: %v, keys %v", err, f.keys)
	}
	if err := Probe(t.Context(), broken{f}, "user", 1); !errors.Is(err, ErrNoNode) || !strings.Contains(err.Error(), "no rules") {
		t.Errorf("no check is decided: %v", err)
	}
}

// broken decides nothing.
type broken struct{ *fake }

func (b broken) NewCaller(int) Caller { return b }
func (b broken) Call(_ context.Context, _ int, keys []string, seen *Counts) error {
	seen.Fail(int64(len(keys)), errors.New("no rules"))
	return nil
}

// A run that is stopped ends with its calls in flight, whose checks the nodes may have charged, and without an error of its own
// doing.
func TestRunIsStopped(t *testing.T) {
	for _, c := range []struct {
		takes, took time.Duration
		calls       int64
	}{
		{10 * time.Millisecond, 510 * time.Millisecond, 102},
		{time.Hour, 505*time.Millisecond + grace, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 505*time.Millisecond)
			defer stop()
			began := time.Now()
			r, err := Run(ctx, newFake(c.takes, nil), work(t, Work{Callers: 2, Batch: 1, Duration: time.Hour}))
			if err != nil || r.Calls != c.calls || r.FailedCalls != 0 || r.Took != c.took || time.Since(began) != r.Took {
				t.Errorf("%+v after %v, %v", r, time.Since(began), err)
			}
		})
	}
}

// Calls that hang are cut off soon after the end.
func TestRunIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r, err := Run(t.Context(), newFake(time.Hour, nil), work(t, Work{Callers: 2, Batch: 1, Duration: time.Second}))
		if took := time.Since(began); err != nil || r.Calls != 0 || took != time.Second+grace || r.Took != time.Second {
			t.Errorf("%+v after %v, %v", r, took, err)
		}
	})
}

func TestValidate(t *testing.T) {
	sound := work(t, Work{Callers: 1, Batch: 1, Duration: time.Second})
	if err := sound.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(w *Work){
		"concurrency": func(w *Work) { w.Callers = 0 },
		"batch":       func(w *Work) { w.Batch = MaxBatch + 1 },
		"rate":        func(w *Work) { w.Rate = math.NaN() },
		"keys":        func(w *Work) { w.Keys = nil },
		"warmup":      func(w *Work) { w.Warmup = -1 },
		"duration":    func(w *Work) { w.Duration = 0 },
	} {
		w := sound
		spoil(&w)
		if _, err := Run(t.Context(), newFake(0, nil), w); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
}

func TestSources(t *testing.T) {
	for s := range sources {
		if SourceNamed(s.String()) != s || s.String() == "" {
			t.Errorf("%d is %q", s, s)
		}
	}
	if SourceNamed("nonsense") != Untold {
		t.Error("nonsense has a source")
	}
	var counts Counts
	counts.Count(sources+1, true)
	if counts.By[Untold].Allowed != 1 {
		t.Errorf("%+v", counts)
	}
}

func TestHistogram(t *testing.T) {
	r := Result{Latency: newHistogram()}
	for _, d := range []time.Duration{90 * time.Microsecond, 150 * time.Microsecond, 160 * time.Microsecond, 30 * time.Millisecond} {
		if err := r.Latency.RecordValue(int64(d)); err != nil {
			t.Fatal(err)
		}
	}
	want := []Bucket{{0.0001, 1}, {0.0002, 2}, {0.05, 1}}
	if got := r.Histogram(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
