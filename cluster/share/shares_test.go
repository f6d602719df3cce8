package share

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// TestShareOf: a share is a part of what was left, less what this node has admitted since.
func TestShareOf(t *testing.T) {
	for _, c := range []struct {
		left, limit, own int64
		voters           int
		unheard          rules.UnknownShare
		want             int64
	}{
		{left: 20, limit: 6, voters: 3, want: 6},
		{left: 18, limit: 6, voters: 3, want: 6},
		{left: 17, limit: 6, voters: 3, want: 5},
		{left: 2, limit: 6, voters: 3, want: 0},
		{left: 0, limit: 6, voters: 3, want: 0},
		{left: 99, limit: 6, voters: 3, want: 6},
		{left: 17, limit: 6, own: 2, voters: 3, want: 3},
		{left: 17, limit: 6, own: 9, voters: 3, want: 0},
		{left: 17, limit: 20, voters: 1, want: 17},
		{left: unknown, limit: 6, voters: 3, want: 6},
		{left: unknown, limit: 6, own: 4, voters: 3, want: 2},
		{left: unknown, limit: 6, voters: 3, unheard: rules.UnknownNone, want: 0},
		{left: 17, limit: 6, voters: 3, unheard: rules.UnknownNone, want: 5},
	} {
		left := []int64{c.left}
		shareOf(left, []bucket.Standing{{Limit: c.limit, Spent: c.own}}, c.voters, c.unheard)
		if left[0] != c.want {
			t.Errorf("%+v: %d", c, left[0])
		}
	}
}

// TestShareOfLaterWindow: a share is worked out in the window of the last answer, also if that begins after the end of quorum, and an answer does
// not bring back what was admitted in a window that has begun since.
func TestShareOfLaterWindow(t *testing.T) {
	const minute = int64(time.Minute)
	limits := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 30, Period: time.Minute})
	at := Place{Parts: Parts{Voters: 3}}
	r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: limits, Cost: 1}
	for _, c := range []struct {
		name string
		// before the first share and after it, an answer that was asked for at a time.
		before, after, asked, left int64
		admits                     int
	}{
		{name: "a window that begins without quorum", asked: -1, admits: 10},
		{name: "its owner has answered before", before: 1, asked: 61 * minute, left: 6, admits: 2},
		{name: "its owner answers", after: 1, asked: 61 * minute, left: 18, admits: 6},
		{name: "an answer of the window before comes late", after: 1, asked: 60*minute - 1, left: 29, admits: 10},
	} {
		s := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10})
		s.When.Turn(59*minute, 60*minute) // quorum ends in the 60th minute
		s.When.Turn(60*minute, 60*minute)
		answer := func(if1 int64) {
			if if1 == 1 {
				end := (c.asked/minute + 1) * minute
				s.Answers.Note(c.asked, &r, &bucket.Decision{Allowed: true, Limit: 30, Remaining: c.left, ResetAfter: time.Duration(end - c.asked)})
			}
		}
		now, admitted := 61*minute+minute/2, 0
		answer(c.before)
		for i := range 40 {
			if i == 4 {
				answer(c.after)
			}
			if _, charged := s.Answer(now, at, &r, rules.UnknownLimit, nil); charged {
				admitted++
			}
		}
		if admitted != c.admits {
			t.Errorf("%s: %d admitted, want %d", c.name, admitted, c.admits)
		}
	}
}

// started returns the shares of a process that starts at 0, and need not wait before it gives any.
func started(t *testing.T, c Config) *Shares {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.When.Start(0, 0, 0)
	return s
}

func table(t *testing.T) *bucket.Table {
	t.Helper()
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestShareOfFewerVoters: a share of one of four is no larger part of what was left when there are three.
func TestShareOfFewerVoters(t *testing.T) {
	s := started(t, Config{Counters: table(t), Shards: 1, MaxKeys: 10})
	r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: hourly(60), Cost: 1}
	s.Answers.Note(1, &r, &bucket.Decision{Allowed: true, Limit: 60, Remaining: 12, ResetAfter: time.Hour})
	admitted := 0
	for i := range 30 {
		at := Place{Parts: Parts{Voters: 4}, Quorum: true}
		if i > 0 {
			at.Voters = 3
		}
		if _, charged := s.Answer(2, at, &r, rules.UnknownLimit, nil); charged {
			admitted++
		}
	}
	if admitted != 4 {
		t.Errorf("%d admitted of 12 that were left, by one of three, want 4", admitted)
	}
}

// TestForgetWhileAnswering: shares that are forgotten while checks are answered are worked out anew, and no check finds the whole of one.
func TestForgetWhileAnswering(t *testing.T) {
	limits := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 3000, Period: time.Hour})
	now := int64(time.Hour)
	s := started(t, Config{Counters: table(t), Shards: 512, MaxKeys: 1000})
	spent := &bucket.Decision{Limit: 3000, ResetAfter: time.Hour}
	for round := range 200 {
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for caller := range 4 {
			callers.Go(func() {
				// All know of another number of voters than before; shares of other keys are forgotten too.
				at := Place{Parts: Parts{Voters: 2 + (round+caller/2)%2}}
				for key := range uint64(8) {
					r := &bucket.Request{Key: bucket.Key{Hi: key << 56, Lo: key}, Limits: limits, Cost: 1}
					s.Answers.Note(now, r, spent)
					if _, charged := s.Answer(now, at, r, rules.UnknownLimit, nil); charged {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if n := admitted.Load(); n > 0 {
			t.Fatalf("round %d: %d checks of keys that are spent were admitted", round, n)
		}
	}
}
