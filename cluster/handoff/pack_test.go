package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// otherLimits has keys from on, n of them, ask with limits that no other key has, several times each with other ones.
func (s *script) otherLimits(from, n, times int) {
	s.t.Helper()
	for i := range n {
		for j := range times {
			limits, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.SlidingLog, Count: 10, Period: time.Duration(j+1) * time.Hour})
			must(s.t, err)
			key := uint64(from + i)
			s.table.Do(s.now, &bucket.Request{Key: bucket.Key{Hi: key, Lo: key}, Limits: limits, Cost: 1})
		}
	}
}

// copied imports what bob was sent, and checks that he could take it.
func (s *script) copied() *bucket.Table {
	s.t.Helper()
	at := newTable(s.t)
	for _, e := range s.sent {
		b, ok := e.Body.(*message.TransferBatch)
		if !ok || e.To != bob {
			continue
		}
		if n := len(b.Image.Limits); n > message.MaxSets {
			s.t.Fatalf("a message with %d sets of limits, want at most %d", n, message.MaxSets)
		}
		if n := len(b.Image.Data); n > closeBytes+bucket.MaxCounterBytes {
			s.t.Fatalf("a message of %d bytes", n)
		}
		must(s.t, at.Import(s.now, 0, &b.Image, b.Image.Data, b.Image.Counters, false))
	}
	return at
}

// TestManySetsAreReplicated: counters that all have limits of their own, and former ones, are replicated at once.
func TestManySetsAreReplicated(t *testing.T) {
	s := newOwner(t, 0, 1, bob)
	s.otherLimits(0, 4000, 9)
	s.pass(400 * time.Millisecond)
	s.otherLimits(4000, 2000, 2) // as changes
	s.pass(100 * time.Millisecond)
	if n := s.Stats().Unprotected; n != 0 {
		t.Errorf("%d partitions have no replica", n)
	}
	if got := s.copied().Stats().Entries; got != 6000 {
		t.Errorf("%d counters of 6000 are at bob", got)
	}
}

// TestManyChangesDoNotHoldUpAHandoff: if more has changed at the freeze than fits into one message, it is sent as changes,
// checks are decided meanwhile, and the handoff follows.
func TestManyChangesDoNotHoldUpAHandoff(t *testing.T) {
	s := newOwner(t, 1, 1, bob)
	n := 0
	for range 5 {
		s.pass(20 * time.Millisecond)
		s.otherLimits(n, 5000, 1)
		n += 5000
		s.now++ // bob has confirmed all that was known, and the next look at changes is not due yet
		s.Tick(s.now)
		s.sent = append(s.sent, s.Take()...)
		if slices.Contains(s.partsTo(bob), message.Close) {
			t.Fatal("a close with too many changes")
		}
		r := tenth(t, 1<<40)
		if r.Verb = bucket.Read; s.parts[0].phase == owning {
			if _, _, v := s.table.Try(s.now, r, nil); v == bucket.Sealed {
				t.Fatal("an owned partition is sealed")
			}
		}
	}
	s.pass(100 * time.Millisecond)
	if !slices.Contains(s.partsTo(bob), message.Close) {
		t.Error("the partition was not handed off")
	}
	if got := s.copied().Stats().Entries; got != int64(n) {
		t.Errorf("%d counters of %d are at bob", got, n)
	}
}

// TestResentCountersAge: a resent batch reports the age of its counters, so that their windows end at the receiver as if it had
// arrived at once.
func TestResentCountersAge(t *testing.T) {
	s := newOwner(t, 0, 1)
	counter := tenth(t, 1)
	for range 10 {
		s.table.Do(s.now, counter)
	}
	began := s.now
	s.pass(450 * time.Millisecond) // no receipt comes
	var first int64
	again := (*message.TransferBatch)(nil)
	for _, e := range s.sent {
		if b, ok := e.Body.(*message.TransferBatch); ok && e.To == bob && len(b.Parts) > 0 && b.N == 1 {
			if again == nil {
				first = b.Age
			}
			again = b
		}
	}
	if again == nil || first != 0 || again.Age < int64(200*time.Millisecond) || again.Age > s.now-began {
		t.Fatalf("batch 1 was sent with age %v first, and last as %+v", first, again)
	}

	to := newScript(t)
	to.now += int64(time.Hour) / 2 // her clock shows another time
	part := message.Part{Kind: message.InitialSync, Epoch: message.Epoch{Gen: owned, Boot: bob.Boot}, InitialSync: 1, Begin: true, End: true,
		Counters: again.Image.Counters, Bytes: len(again.Image.Data), Sum: addChecksum(0, again.Image.Data)}
	to.tells(bob, &message.TransferBatch{N: 1, Age: again.Age, Parts: []message.Part{part}, Image: again.Image})
	want := time.Hour - time.Duration(again.Age)
	if got := to.table.Do(to.now, counter).RetryAfter; got > want || got < want-20*time.Millisecond {
		t.Errorf("the window ends in %v at the replica, want %v", got, want)
	}
}
