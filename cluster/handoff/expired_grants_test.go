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
	must(t, err)
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
	owners := newTable(t)
	var list []bucket.Portion
	for _, e := range s.sent {
		b, ok := e.Body.(*message.TransferBatch)
		if ok && e.To == bob && b.N == uint64(len(list)+1) { // others are sent again
			list = append(list, bucket.Portion{
				At: s.now, Image: &b.Image, Data: b.Image.Data, Counters: b.Image.Counters,
			})
		}
	}
	must(t, owners.Merge(s.now, 0, list))
	if d := owners.Do(s.now, r); len(list) == 0 || d.Remaining != 400 {
		t.Errorf("%d batches, and %d of 1000 left, want 400", len(list), d.Remaining)
	}
}

// settles settles the reservations of reserves for one unit each.
func settles(table *bucket.Table, now int64, n int) {
	for id := range uint64(n) {
		x := &bucket.Reservation{ID: id + 1}
		table.Do(now, &bucket.Request{Cost: 1, Verb: bucket.Settle, Reservation: x})
	}
}

// TestMergedInParts: a divergent copy of ten reservations comes in two parts, after the owner has
// settled them and their deadline has passed in the copy. They count as the owner has settled them.
// A second part whose first one went to an earlier term is rejected, so that both come again.
func TestMergedInParts(t *testing.T) {
	for _, again := range []bool{false, true} {
		s := newScript(t)
		copied := newTable(t)
		r := reserves(t, copied, s.now, time.Hour, 10)
		b := &message.TransferBatch{}
		copied.Export(s.now, 0, copied.Keys(0, nil), &b.Image)
		must(t, s.table.Import(s.now, 0, &b.Image, b.Image.Data, b.Image.Counters, false))
		charge := *r
		charge.Verb, charge.Cost = bucket.Charge, 30
		copied.Do(s.now, &charge)
		s.owns(owned)
		settles(s.table, s.now, 10)
		s.pass(1500 * time.Millisecond)
		part := message.Part{Kind: message.Merge, InitialSync: 1, Epoch: message.Epoch{Gen: owned - 1, Boot: carol.Boot}}
		for keys := copied.Keys(0, nil); len(keys) > 0; keys = keys[5:] {
			part.Begin, part.End = len(keys) == 10, len(keys) == 5
			s.sends(carol, part, copied, keys[:5])
			if again && part.Begin {
				s.parts[0].ownership.merging = nil // of another term
			}
		}
		receipt := lastReceipt(t, s, carol)
		want := int64(1000 - 30 - 10)
		if again {
			want = 1000 - 10
		}
		if d := s.table.Do(s.now, r); d.Remaining != want || len(receipt.Rejected) > 0 != again {
			t.Errorf("again %v: %d of 1000 left, want %d; %+v", again, d.Remaining, want, receipt)
		}
	}
}

// sends sends alice a part with the keys of the table, as of now.
func (s *solo) sends(peer message.Peer, part message.Part, table *bucket.Table, keys []bucket.KeyAt) {
	s.t.Helper()
	s.sent[peer]++
	b := &message.TransferBatch{N: s.sent[peer]}
	table.Export(s.now, 0, keys, &b.Image)
	part.Counters, part.Bytes = b.Image.Counters, len(b.Image.Data)
	b.Parts = []message.Part{part}
	s.Step(s.now, message.Envelope{From: peer, To: alice, ClusterID: clusterID, Body: b})
}

// lastReceipt returns the last receipt that alice has sent to a peer.
func lastReceipt(t *testing.T, s *script, to message.Peer) *message.Receipt {
	t.Helper()
	s.sent = append(s.sent, s.Take()...)
	r := lastTo[*message.Receipt](s, to)
	if r == nil {
		t.Fatal("no receipt")
	}
	return r
}

// TestJoinedAfterDeadline: a claimer's own state has reservations whose deadline has passed. What the fetched state has settled counts as
// settled, and what has ended in an earlier window does not count in the one in which the states are joined.
func TestJoinedAfterDeadline(t *testing.T) {
	const claimGen = 3 << message.Handoffs
	best := message.Mark{Epoch: message.Epoch{Gen: 2 << message.Handoffs, Boot: carol.Boot}, Seq: 9}
	for _, c := range []struct {
		name   string
		period time.Duration
		n      int
		bobs   func(bobs *bucket.Table, r *bucket.Request)
		want   int64
	}{
		{"settled", time.Hour, 10, func(bobs *bucket.Table, _ *bucket.Request) {
			reserves(t, bobs, 1, time.Hour, 10)
			bobs.Open(0, 1)
			settles(bobs, 2, 10)
		}, 990},
		{"of an earlier window", 2 * time.Second, 1, func(bobs *bucket.Table, r *bucket.Request) {
			bobs.Do(int64(5*time.Second), &bucket.Request{Limits: r.Limits, Cost: 1})
		}, 999},
	} {
		s, bobs := newSolo(t), newTable(t)
		s.parts[0].phase = divergent
		s.parts[0].state = state{mark: message.Mark{Epoch: message.Epoch{Gen: 1 << message.Handoffs, Boot: alice.Boot}, Seq: 5}}
		r := reserves(t, s.table, 1, c.period, c.n)
		c.bobs(bobs, r)
		s.claims(claimGen, best)
		s.now = int64(5 * time.Second)
		var im bucket.Image
		keys := bobs.Keys(0, nil)
		bobs.Export(s.now, 0, keys, &im)
		s.sends(bob, message.Part{
			Kind: message.Answer, Epoch: best.Epoch, Seq: best.Seq, InitialSync: 7, Next: message.Epoch{Gen: claimGen},
			Begin: true, End: true, Sum: addChecksum(0, im.Data),
		}, bobs, keys)
		if !s.Owns(0) {
			t.Fatalf("%s: alice has not become the owner", c.name)
		}
		if d := s.table.Do(s.now, r); d.Remaining != c.want {
			t.Errorf("%s: %d of 1000 left, want %d", c.name, d.Remaining, c.want)
		}
	}
}
