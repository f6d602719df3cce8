package bucket_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestSeal: a sealed shard answers nothing and changes by nothing but Import. Do does not mind.
func TestSeal(t *testing.T) {
	table := mustTable(t, bucket.Config{Shards: 2})
	limits := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	free := mustLimits(t, bucket.Limit{Unlimited: true})
	var rc bucket.Receipt
	table.Try(day, &bucket.Request{Limits: limits, Cost: 3}, &rc)
	if !rc.Charged() {
		t.Fatal("nothing was charged")
	}
	table.Seal(0)
	before := exported(table, day, 0)
	for _, r := range []bucket.Request{
		{Limits: limits, Cost: 1}, {Limits: limits, Cost: 1, Unreplicated: true}, {Limits: free, Cost: 1}, {Limits: limits, Verb: bucket.Read},
		{Limits: limits, Cost: 1, Verb: bucket.Charge}, {Limits: limits, Cost: 1, Verb: bucket.Refund}, {Limits: limits, Verb: bucket.Reset},
	} {
		var other bucket.Receipt
		d, seq, v := table.Try(day, &r, &other)
		if v != bucket.Sealed || d != (bucket.Decision{}) || seq != 1 || other.Charged() {
			t.Errorf("%s: %+v, change %d, verdict %d", r.Verb, d, seq, v)
		}
	}
	r := &bucket.Request{Limits: mustLimits(t, per(bucket.FixedWindow, 10, time.Minute)), Cost: 4}
	if x, v := table.Counts(day, r, 1, r.Limits.WindowEnd(day)); v != bucket.Sealed || x != (bucket.Counted{}) {
		t.Errorf("counts: %+v, verdict %d", x, v)
	}
	if s, charged, seq, v := table.TryTimes(day, r, 3); v != bucket.Sealed || s != (bucket.Series{}) || charged || seq != 1 {
		t.Errorf("a series: %+v, verdict %d, change %d", s, v, seq)
	}
	if _, v := table.Renew(day, r); v != bucket.Sealed {
		t.Errorf("renewed: verdict %d", v)
	}
	table.GiveBack(day, &rc)
	if after := exported(table, day, 0); !bytes.Equal(before.Data, after.Data) {
		t.Error("a sealed shard has changed")
	}
	if _, _, v := table.Try(day, &bucket.Request{Key: bucket.Key{Lo: 1}, Limits: limits, Cost: 1}, nil); v != bucket.Decided {
		t.Error("the shard beside it is sealed")
	}
	table.DropShard(0)
	if _, seq, v := table.Try(day, &bucket.Request{Limits: limits, Cost: 1}, nil); v != bucket.Sealed || seq != 0 {
		t.Errorf("dropped: change %d, verdict %d", seq, v)
	}
	if d := table.Do(day, &bucket.Request{Limits: limits, Cost: 1}); !d.Allowed {
		t.Errorf("Do: %+v", d)
	}
	table.Open(0, 41)
	if d, seq, v := table.Try(day, &bucket.Request{Limits: limits, Cost: 1}, &rc); v != bucket.Decided || seq != 42 || d.Remaining != 8 || !rc.Charged() {
		t.Errorf("opened at 41: %+v, change %d, verdict %d", d, seq, v)
	}
}

// TestReceiptAcrossImport: what was imported or merged over a counter may not contain its charges, so they
// cannot be given back out of it; new ones can.
func TestReceiptAcrossImport(t *testing.T) {
	for _, c := range algorithms {
		for _, merge := range []bool{false, true} {
			for _, known := range []int64{0, 5} { // what the importer has spent before the held charge
				limits := mustLimits(t, per(c.algorithm, 20, time.Hour))
				r := &bucket.Request{Limits: limits, Cost: 5}
				from, to := smallTable(t), smallTable(t)
				from.Do(day, r)
				if known > 0 {
					to.Do(day, r)
				}
				var rc bucket.Receipt
				to.DoHeld(day, r, &rc)
				hand(t, from, to, day, day, merge)
				want := int64(15)
				if merge {
					want -= known
				}
				if got := left(to, day, r); got != want {
					t.Errorf("%s, merge %v: %d left, want %d", c.name, merge, got, want)
				}
				to.GiveBack(day, &rc)
				if got := left(to, day, r); got != want {
					t.Errorf("%s, merge %v: %d left after an old receipt, want %d", c.name, merge, got, want)
				}
				to.DoHeld(day, r, &rc)
				to.GiveBack(day, &rc)
				if got := left(to, day, r); got != want {
					t.Errorf("%s, merge %v: %d left after a new receipt, want %d", c.name, merge, got, want)
				}
			}
		}
	}
}

// TestGiveBackIsRecorded: as the charge was.
func TestGiveBackIsRecorded(t *testing.T) {
	for _, unreplicated := range []bool{false, true} {
		table := smallTable(t)
		r := &bucket.Request{Limits: mustLimits(t, per(bucket.TokenBucket, 10, time.Hour)), Cost: 1, Unreplicated: unreplicated}
		table.Record(0, bucket.RecordLasting, 0)
		var rc bucket.Receipt
		table.Try(day, r, &rc)
		table.Drain(0, nil)
		table.GiveBack(day+1, &rc)
		keys, seq, _ := table.Drain(0, nil)
		if seq != 2 || (len(keys) == 1) == unreplicated {
			t.Errorf("unreplicated %v: %d keys, change %d", unreplicated, len(keys), seq)
		}
	}
}

// TestSealIsPrompt has several goroutines use a shard while it is sealed, drained, exported and opened again. Whatever
// was decided is in the shard when Seal returns, and nothing changes until Open.
func TestSealIsPrompt(t *testing.T) {
	const users, rounds = 4, 50
	limits, few := mustLimits(t, per(bucket.FixedWindow, 1<<40, 24*time.Hour)), keys(3)
	table := mustTable(t, bucket.Config{Shards: 1})
	table.Record(0, bucket.RecordAll, time.Hour)
	decided := make([]int64, users)
	sealed, resume := make(chan int, users), make([]chan bool, users)
	var all sync.WaitGroup
	for i := range users {
		resume[i] = make(chan bool)
		all.Go(func() {
			r := &bucket.Request{Limits: limits, Cost: 1}
			for n := 0; ; n++ {
				r.Key = few[n%len(few)]
				var rc bucket.Receipt
				switch _, _, v := table.Try(day, r, &rc); {
				case v == bucket.Sealed:
					table.GiveBack(day, &rc)
					sealed <- i
					if !<-resume[i] {
						return
					}
				case n%7 == 0:
					table.GiveBack(day, &rc)
					decided[i]++ // whether it was given back in time is seen from the counters
				default:
					decided[i]++
				}
			}
		})
	}
	seqs := uint64(0)
	for round := range rounds {
		table.Drain(0, nil)
		table.Confirm(0, day)
		table.Seal(0)
		_, seq, _ := table.Drain(0, nil)
		before := exported(table, day, 0)
		for range users {
			<-sealed
		}
		keys, after, _ := table.Drain(0, nil)
		if im := exported(table, day, 0); !bytes.Equal(before.Data, im.Data) || after != seq || len(keys) != 0 {
			t.Fatalf("round %d: %d keys have changed since the seal, %d changes", round, len(keys), after-seq)
		}
		seqs = seq
		if round == rounds-1 {
			break
		}
		table.Open(0, seq)
		for i := range users {
			resume[i] <- true
		}
	}
	for i := range users {
		resume[i] <- false
	}
	all.Wait()
	var charges, spent int64
	for i := range users {
		charges += decided[i]
	}
	table.Open(0, seqs)
	for _, k := range few {
		spent += 1<<40 - left(table, day, &bucket.Request{Key: k, Limits: limits, Cost: 1})
	}
	// Every change is a charge or a give-back.
	if given := int64(seqs) - charges; given < 0 || spent != charges-given {
		t.Errorf("%d charges, %d changes, %d spent", charges, seqs, spent)
	}
}
