package handoff

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// Processes of these tests. They are all in the voter set.
var (
	alice = message.Peer{Name: "a", Boot: "a1"}
	bob   = message.Peer{Name: "b", Boot: "b1"}
	carol = message.Peer{Name: "c", Boot: "c1"}
)

const clusterID = "cluster_id"

// solo is alice's machine with one partition; the test plays all other processes.
type solo struct {
	*Machine
	t     *testing.T
	table *bucket.Table
	sent  map[message.Peer]uint64 // the number of the last transfer batch of each
}

func newSolo(t *testing.T) *solo {
	t.Helper()
	table := newTable(t)
	set := message.Set{ID: clusterID, Version: 1, Members: []string{"a", "b", "c"}}
	q := quorum.New(quorum.Config{Self: alice, Record: message.Record{Set: set}}, 0)
	s := &solo{Machine: New(Config{Self: alice, Partitions: 1, Table: table, Quorum: q}, 0), t: t, table: table, sent: map[message.Peer]uint64{}}
	s.SetView(0, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Replica: []int{1}})
	s.Tick(0)
	return s
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newTable(t *testing.T) *bucket.Table {
	t.Helper()
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	must(t, err)
	return table
}

// tenth is a request for one of ten units.
func tenth(t *testing.T, key uint64) *bucket.Request {
	t.Helper()
	limits, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Hour, Align: bucket.AlignFirstHit})
	must(t, err)
	return &bucket.Request{Key: bucket.Key{Hi: key, Lo: key}, Limits: limits, Cost: 1}
}

// spend spends n of the counter's ten units on table.
func spend(t *testing.T, table *bucket.Table, key uint64, n int) {
	t.Helper()
	for range n {
		table.Do(1, tenth(t, key))
	}
}

// spent returns the spent units of the counter.
func spent(t *testing.T, table *bucket.Table, key uint64) int64 {
	t.Helper()
	r := tenth(t, key)
	r.Verb = bucket.Read
	return 10 - table.Do(1, r).Remaining
}

// from delivers a transfer batch of one part, with these counters of table.
func (s *solo) from(peer message.Peer, part message.Part, table *bucket.Table, keys ...uint64) {
	s.t.Helper()
	b := &message.TransferBatch{N: s.sent[peer] + 1}
	var list []bucket.KeyAt
	for _, k := range keys {
		list = append(list, bucket.KeyAt{Key: bucket.Key{Hi: k, Lo: k}})
	}
	table.Export(1, 0, list, &b.Image)
	part.Counters, part.Bytes = len(keys), len(b.Image.Data)
	b.Parts = []message.Part{part}
	s.sent[peer]++
	s.Step(s.now, message.Envelope{From: peer, To: alice, ClusterID: clusterID, Body: b})
}

// inTwo delivers a counter of table by two batches, of which the second has the checksum, and returns that.
func (s *solo) inTwo(peer message.Peer, part message.Part, table *bucket.Table, key uint64) (sum uint64) {
	s.t.Helper()
	begin, end := part, part
	begin.Begin, end.End, end.Sum = true, true, s.sum(table, key)
	s.from(peer, begin, table, key)
	s.from(peer, end, table)
	return end.Sum
}

// claims brings alice to the point where she fetches bob's state.
func (s *solo) claims(gen uint64, best message.Mark) {
	p := &s.parts[0]
	p.known = knowledge{epoch: message.Epoch{Gen: gen, Boot: alice.Boot}, owner: alice}
	p.claim = &claim{gen: gen, request: &claimRequest{id: 1, parts: []int{0}}, stage: fetching, states: []offer{{peer: bob, has: message.Complete, mark: best}}}
	s.claimRequests = []*claimRequest{p.claim.request}
}

// TestFetchBreaksOff: a claimer's own state, divergent or replica, is unchanged until the fetched state is complete.
func TestFetchBreaksOff(t *testing.T) {
	const claimGen, later = 3 << message.Handoffs, 4 << message.Handoffs
	own := message.Mark{Epoch: message.Epoch{Gen: 1 << message.Handoffs, Boot: alice.Boot}, Seq: 5}
	best := message.Mark{Epoch: message.Epoch{Gen: 2 << message.Handoffs, Boot: carol.Boot}, Seq: 9}
	for _, held := range []bool{false, true} {
		for name, c := range map[string]struct {
			// ends: the last portion arrives, complete or not; otherwise bob is gone.
			ends, damaged bool
			want          [2]int64 // of key 1, which only alice has counted, and key 2
		}{
			"broken off": {want: [2]int64{4, 0}},
			"damaged":    {ends: true, damaged: true, want: [2]int64{4, 0}},
			"whole":      {ends: true, want: [2]int64{0, 3}},
		} {
			s := newSolo(t)
			spend(t, s.table, 1, 4)
			s.parts[0].phase, s.parts[0].state = replica, state{mark: own}
			if held {
				s.parts[0].phase = divergent
			}
			s.claims(claimGen, best)

			bobs := newTable(t)
			spend(t, bobs, 2, 3)
			part := message.Part{Kind: message.Answer, Epoch: best.Epoch, Seq: best.Seq, InitialSync: 7, Next: message.Epoch{Gen: claimGen}}
			begin := part
			begin.Begin = true
			s.from(bob, begin, bobs, 2)
			if c.ends {
				end := part
				end.End, end.Sum = true, s.sum(bobs, 2)
				if c.damaged {
					end.Sum++
				}
				s.from(bob, end, bobs)
			} else {
				s.parts[0].claim = nil
			}

			want := c.want
			if held && c.ends && !c.damaged {
				want[0] = 4 // joined
			}
			if got := [2]int64{spent(t, s.table, 1), spent(t, s.table, 2)}; got != want {
				t.Errorf("%s, held %v: spent %v, want %v", name, held, got, want)
			}
			whole := c.ends && !c.damaged
			if s.Owns(0) != whole {
				t.Errorf("%s, held %v: that alice holds it is %v", name, held, s.Owns(0))
			}
			if whole {
				continue
			}
			if x := s.parts[0]; x.completeness() != message.Complete || x.state.mark != own || (x.phase == divergent) != held {
				t.Errorf("%s, held %v: has %+v, want what it had", name, held, x)
			}
			if !held {
				continue
			}
			// Carol claims from bob's state, which lacks what alice decided as the owner.
			s.Step(2, message.Envelope{From: carol, To: alice, ClusterID: clusterID, Body: &message.OwnedPartitions{
				Seq: 1, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: later, Start: best}},
			}})
			if s.parts[0].phase != divergent {
				t.Errorf("%s: the divergent copy counts as a part of a history that it is not in", name)
			}
		}
	}
}

// sum is the checksum of an initial sync of one portion with keys, and an empty one.
func (s *solo) sum(table *bucket.Table, key uint64) uint64 {
	var im bucket.Image
	table.Export(1, 0, []bucket.KeyAt{{Key: bucket.Key{Hi: key, Lo: key}}}, &im)
	return addChecksum(addChecksum(0, im.Data), nil)
}
