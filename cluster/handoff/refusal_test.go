package handoff

import (
	"testing"

	"github.com/sluice-project/sluice/internal/message"
)

// TestRefusalMemory: who has refused a close does not take one of its generation later, whatever it
// comes with: the sender has gone on since, two generations higher, and may have decided.
func TestRefusalMemory(t *testing.T) {
	holds := message.Epoch{Gen: 1 << message.Handoffs, Boot: bob.Boot}
	next := message.Epoch{Gen: holds.Gen + 1, Boot: alice.Boot}
	bobs := newTable(t)
	spend(t, bobs, 1, 3)
	for _, c := range []struct {
		name    string
		without Guard
		gen     uint64 // of the second close
		takes   bool
	}{
		{"the same generation", 0, next.Gen, false},
		{"two more", 0, next.Gen + 2, true},
		{"the same, and nothing is remembered", RefusalMemory, next.Gen, true},
	} {
		s := newSolo(t)
		s.c.Without = c.without
		fill := func(n uint64) uint64 {
			part := message.Part{Kind: message.Fill, Epoch: holds, Fill: n}
			begin, end := part, part
			begin.Begin, end.End, end.Sum = true, true, s.sum(bobs, 1)
			s.from(bob, begin, bobs, 1)
			s.from(bob, end, bobs)
			return end.Sum
		}
		sum := fill(1)
		s.from(bob, message.Part{Kind: message.Close, Epoch: holds, Fill: 1, Next: next, Sum: add(sum, nil) + 1}, bobs)
		if s.Holds(0) {
			t.Fatalf("%s: a close with a wrong checksum was taken", c.name)
		}
		sum = fill(2)
		s.from(bob, message.Part{
			Kind: message.Close, Epoch: holds, Fill: 2, Next: message.Epoch{Gen: c.gen, Boot: alice.Boot}, Sum: add(sum, nil),
		}, bobs)
		if s.Holds(0) != c.takes {
			t.Errorf("%s: that alice holds it is %v, want %v", c.name, s.Holds(0), c.takes)
		}
		if c.takes && spent(t, s.table, 1) != 3 {
			t.Errorf("%s: holds it with %d spent, want 3", c.name, spent(t, s.table, 1))
		}
	}
}
