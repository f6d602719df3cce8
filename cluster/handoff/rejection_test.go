package handoff

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestRejectionMemory: a node that has rejected a close accepts no later one of its generation, because the sender has
// continued two generations higher and may have decided. TestRejectionMemoryRemoved removes the rule.
func TestRejectionMemory(t *testing.T) {
	if takesAfterRejection(t, 0) {
		t.Error("a close of a rejected generation was accepted")
	}
	if !takesAfterRejection(t, 2) {
		t.Error("a close of two generations more was rejected")
	}
}

// takesAfterRejection sends alice a close with a wrong checksum, then a correct one that many generations higher, and reports
// whether alice then owns the partition.
func takesAfterRejection(t *testing.T, higher uint64) bool {
	t.Helper()
	holds := message.Epoch{Gen: 1 << message.Handoffs, Boot: bob.Boot}
	next := message.Epoch{Gen: holds.Gen + 1, Boot: alice.Boot}
	bobs := newTable(t)
	spend(t, bobs, 1, 3)
	s := newSolo(t)
	sum := s.inTwo(bob, message.Part{Kind: message.InitialSync, Epoch: holds, InitialSync: 1}, bobs, 1)
	s.from(bob, message.Part{Kind: message.Close, Epoch: holds, InitialSync: 1, Next: next, Sum: addChecksum(sum, nil) + 1}, bobs)
	if s.Owns(0) {
		t.Fatal("a close with a wrong checksum was accepted")
	}
	sum = s.inTwo(bob, message.Part{Kind: message.InitialSync, Epoch: holds, InitialSync: 2}, bobs, 1)
	next.Gen += higher
	s.from(bob, message.Part{Kind: message.Close, Epoch: holds, InitialSync: 2, Next: next, Sum: addChecksum(sum, nil)}, bobs)
	if s.Owns(0) && spent(t, s.table, 1) != 3 {
		t.Errorf("alice owns it with %d spent, want 3", spent(t, s.table, 1))
	}
	return s.Owns(0)
}
