package snapshot

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestStopBetweenAnySteps fails or stops the writing of a second snapshot at each of its steps,
// and cuts the power or does not. What is found is the first or the second, whole.
func TestStopBetweenAnySteps(t *testing.T) {
	first, second := example(), example()
	first.Header.Boot = "first"
	// So much that it is written in several steps.
	big := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{}).Read(big)
	second.Parts[0].Images[0].Data = big

	for _, old := range []*content{nil, &first} {
		whole := runTo(t, old, second, -1, false)
		if whole.steps < 8 {
			t.Fatalf("only %d steps", whole.steps)
		}
		for at := range whole.steps {
			for _, dead := range []bool{true, false} {
				t.Run(fmt.Sprintf("over %v, step %d, dead %v", old != nil, at, dead), func(t *testing.T) {
					m := runTo(t, old, second, at, dead)
					for _, cut := range []bool{false, true} {
						m.afterwards(cut, func(data []byte) { oneOf(t, data, old, second) })
					}
				})
			}
		}
		// A power cut right after Commit loses nothing.
		whole.afterwards(true, func(data []byte) { oneOf(t, data, nil, second) })
	}
}

// runTo writes c over old, with the step at failing.
func runTo(t *testing.T, old *content, c content, at int, dead bool) *machine {
	t.Helper()
	var data []byte
	if old != nil {
		data = encode(t, *old)
	}
	m := newMachine(data)
	m.failAt, m.dead = at, dead
	err := m.write(c)
	if at < 0 {
		do(t, err)
	} else if !errors.Is(err, errStep) {
		t.Fatalf("step %d failed, and writing says %v", at, err)
	}
	if m.names[tempName] != nil && !dead {
		t.Error("the temporary file was left")
	}
	return m
}

// oneOf fails the test unless data is the new snapshot or the old one (nil for none).
func oneOf(t *testing.T, data []byte, old *content, c content) {
	t.Helper()
	if data == nil {
		if old != nil {
			t.Error("both are gone")
		}
		return
	}
	r, err := open(data, c.want())
	if err != nil {
		t.Errorf("%d bytes: %v", len(data), err)
		return
	}
	got, err := read(r)
	do(t, err)
	if old != nil && got.Header.Boot == old.Header.Boot {
		c = *old
	}
	same(t, got, c)
}

// TestErrorStays: after a failed write nothing is committed, and every call says why.
func TestErrorStays(t *testing.T) {
	c := example()
	m := newMachine(nil)
	released := 0
	w, err := newWriter(m, "/data/counters.snapshot", c.Header, func() { released++ })
	do(t, err)
	wrong := c.Parts[0].Section
	wrong.Partition = c.Header.Partitions
	first := w.Section(wrong)
	if first == nil {
		t.Fatal("a partition that there is not was accepted")
	}
	for _, err := range []error{w.Section(c.Parts[0].Section), w.Commit(), w.Commit()} {
		if err != first {
			t.Errorf("%v, want %v", err, first)
		}
	}
	w.Abort()
	if len(m.names) != 0 || released != 1 {
		t.Errorf("left: %v; released %d times", m.names, released)
	}
}
