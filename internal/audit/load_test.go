package audit

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestExhaustAsksInTurnUntilDenied(t *testing.T) {
	e := newExhaust(3, 2)
	rng := rand.New(rand.NewPCG(1, 1))
	if got := e.next(rng, nil, 2); !slices.Equal(got, []int32{0, 1}) {
		t.Errorf("first %v", got)
	}
	if got := e.next(rng, nil, 5); !slices.Equal(got, []int32{2, 0, 1}) {
		t.Errorf("then all once: %v", got)
	}
	for _, k := range []int32{0, 0, 2, 2, 2} {
		e.denied(k)
	}
	if got := e.next(rng, nil, 5); !slices.Equal(got, []int32{1}) || e.left() != 1 {
		t.Errorf("one is left: %v, %d", got, e.left())
	}
	e.denied(1)
	e.denied(1)
	if got := e.next(rng, nil, 5); len(got) != 0 || e.left() != 0 {
		t.Errorf("none is left: %v", got)
	}
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(100)
		began := time.Now()
		for range 5 {
			if !p.wait(t.Context(), 10) {
				t.Fatal("stopped")
			}
		}
		if took := time.Since(began); took != 400*time.Millisecond {
			t.Errorf("50 checks at 100 a second took %v", took)
		}
		// What was missed is not made up for.
		time.Sleep(time.Minute)
		began = time.Now()
		p.wait(t.Context(), 10)
		p.wait(t.Context(), 10)
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("after a pause, 20 checks took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if p.wait(ctx, 1) {
			t.Error("the end of the context did not end the waiting")
		}
	})
}

func TestTimeline(t *testing.T) {
	var a, b timeline
	a.answered(int64(50*time.Millisecond), 7)
	a.answered(int64(99*time.Millisecond), 5)
	b.failed(int64(250 * time.Millisecond))
	b.answered(int64(20*time.Millisecond), 9)
	b.answered(-1, 1) // a clock before the beginning
	a.merge(b)
	want := timeline{
		{At: 0, Checks: 4, MaxLatency: 9}, {At: Seconds(100 * time.Millisecond)}, {At: Seconds(200 * time.Millisecond), Errors: 1},
	}
	if !slices.Equal(a, want) {
		t.Errorf("got %+v", a)
	}
}

func TestGroup(t *testing.T) {
	g := group(4, [][]record{{{key: 2, first: 1}, {key: 0, first: 2}}, nil, {{key: 2, first: 3}}})
	for key, want := range [][]int64{{2}, nil, {1, 3}, nil} {
		var got []int64
		for _, r := range g.of(key) {
			got = append(got, r.first)
		}
		if !slices.Equal(got, want) {
			t.Errorf("key %d: %v, want %v", key, got, want)
		}
	}
}

// fullDisk takes n bytes.
type fullDisk struct{ n int }

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.n -= len(p); d.n < 0 {
		return 0, errors.New("no space left")
	}
	return len(p), nil
}

func TestLog(t *testing.T) {
	var out bytes.Buffer
	l := newLogWriter(&out)
	want := []Check{
		{Key: "a", First: 1, Sent: 2, Answered: 3, Node: "n", Decision: "allowed", Source: "owned", Owner: "n1", Attempts: 1},
		{Key: "b", Decision: "error", Ambiguous: 2, Attempts: 3, Error: "lost"},
	}
	for i := range want {
		l.write(&want[i])
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	var got []Check
	if err := ReadLog(&out, func(c Check) error { got = append(got, c); return nil }); err != nil || !slices.Equal(got, want) {
		t.Errorf("read %+v, %v", got, err)
	}
	if err := ReadLog(strings.NewReader("{}\n{"), func(Check) error { return nil }); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("error %v of a torn log", err)
	}
	full := newLogWriter(&fullDisk{n: 100})
	for range 1000 {
		full.write(&want[0])
	}
	if err := full.close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v of a full disk", err)
	}
}
