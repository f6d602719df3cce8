package handoff

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// reserves reserves six units for a second, under a limit in windows of the period, and returns a
// request that reads the key.
func reserves(t *testing.T, table *bucket.Table, now int64, period time.Duration, n int) *bucket.Request {
	t.Helper()
	limits, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1000, Period: period})
	if err != nil {
		t.Fatal(err)
	}
	table.Open(0, 1)
	defer table.Seal(0)
	for id := range uint64(n) {
		x := &bucket.Reservation{ID: id + 1, Least: 6, MaxOpen: 1000, For: time.Second}
		table.Do(now, &bucket.Request{Limits: limits, Cost: 6, Verb: bucket.Reserve, Reservation: x})
		if x.Reserved.Units != 6 {
			t.Fatalf("%+v reserved", x.Reserved)
		}
	}
	return &bucket.Request{Limits: limits, Verb: bucket.Read}
}

// TestMergedAfterDeadlines: the owner that a divergent copy is merged into charges all reservations
// of the copy whose deadline has passed there, however many there are.
func TestMergedAfterDeadlines(t *testing.T) {
	s := newScript(t)
	lost := at(owned, carol)
	s.parts[0].phase, s.parts[0].state = replica, state{mark: lost, from: carol}
	r := reserves(t, s.table, s.now, time.Hour, 100)
	s.pass(1500 * time.Millisecond)
	s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{
		{Partition: 0, Gen: claimed, Loss: message.Loss{Last: lost.Epoch, Age: 1}},
	}})
	s.pass(200 * time.Millisecond)
	owners, merges := newTable(t), 0
	for _, e := range s.sent {
		b, ok := e.Body.(*message.TransferBatch)
		if !ok || e.To != bob {
			continue
		}
		if err := owners.Import(s.now, 0, &b.Image, b.Image.Data, b.Image.Counters, true); err != nil {
			t.Fatal(err)
		}
		merges++
	}
	if d := owners.Do(s.now, r); merges == 0 || d.Remaining != 400 {
		t.Errorf("%d batches, and %d of 1000 left, want 400", merges, d.Remaining)
	}
}

// TestJoinedAfterDeadline: a reservation that a claimer has, and whose deadline has passed in an
// earlier window, does not count in the window in which the fetched state is joined.
func TestJoinedAfterDeadline(t *testing.T) {
	const claimGen = 3 << message.Handoffs
	best := message.Mark{Epoch: message.Epoch{Gen: 2 << message.Handoffs, Boot: carol.Boot}, Seq: 9}
	s := newSolo(t)
	s.parts[0].phase = divergent
	s.parts[0].state = state{mark: message.Mark{Epoch: message.Epoch{Gen: 1 << message.Handoffs, Boot: alice.Boot}, Seq: 5}}
	r := reserves(t, s.table, 1, 2*time.Second, 1)
	s.claims(claimGen, best)
	s.now = int64(5 * time.Second)

	bobs := newTable(t)
	bobs.Do(s.now, &bucket.Request{Limits: r.Limits, Cost: 1})
	b := &message.TransferBatch{N: 1}
	bobs.Export(s.now, 0, bobs.Keys(0, nil), &b.Image)
	b.Parts = []message.Part{{
		Kind: message.Answer, Epoch: best.Epoch, Seq: best.Seq, InitialSync: 7, Next: message.Epoch{Gen: claimGen},
		Begin: true, End: true, Counters: b.Image.Counters, Bytes: len(b.Image.Data), Sum: addChecksum(0, b.Image.Data),
	}}
	s.Step(s.now, message.Envelope{From: bob, To: alice, ClusterID: clusterID, Body: b})
	if !s.Owns(0) {
		t.Fatal("alice has not become the owner")
	}
	if d := s.table.Do(s.now, r); d.Remaining != 999 {
		t.Errorf("%d of 1000 left, want 999", d.Remaining)
	}
}
