package peer

import (
	"reflect"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// TestTimes: how many checks a record is travels, and what became of each of them.
func TestTimes(t *testing.T) {
	network := newNetwork()
	denial := &bucket.Decision{Index: 2, Limit: 9, Remaining: 1, ResetAfter: time.Minute, RetryAfter: time.Second}
	want := []check.Reply{
		{Status: check.Decided, Owner: "b", Admitted: 4, Decision: bucket.Decision{Allowed: true, Limit: 9, Remaining: 5}},
		{Status: check.Decided, Owner: "b", Admitted: 2, Decision: bucket.Decision{Allowed: true, Limit: 9, Remaining: 1}, Denial: denial},
		{Status: check.Decided, Owner: "b", Decision: *denial},
		{Status: check.Decided, Owner: "b", Admitted: 7, Grant: 9, For: time.Second, LeasedOut: true},
		{Status: check.Decided, Owner: "b", Admitted: 1, Decision: bucket.Decision{Allowed: true, Limit: 1}, Denial: &bucket.Decision{Limit: 1, RetryAfter: 1}},
	}
	var times []int64
	var grant, back check.Record
	network.serve(t, "b:1", network.config("b"), handlerFunc(func(_ string, records []check.Record, replies []check.Reply) {
		for i, r := range records {
			times = append(times, r.Times)
			switch {
			case r.Grant:
				grant = r
			case r.Return:
				back = r
			}
			replies[i] = want[r.ID]
		}
	}))
	pool := open(t, network.config("a"))
	records := []check.Record{{Times: 4}, {Times: 3, ID: 1}, {Times: 1024, ID: 2}, {Grant: true, Want: 1, Rate: 2, For: 3, ID: 3}, {Return: true, Want: 5, ID: 4}}
	got := make([]check.Reply, len(records))
	if err := pool.Call(t.Context(), "b:1", records, got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if !reflect.DeepEqual(times, []int64{4, 3, 1024, 0, 0}) || grant != records[3] || back != records[4] {
		t.Errorf("records of %v checks, %+v, %+v", times, grant, back)
	}
}

// TestTimesApart: two calls in one frame get their own denials.
func TestTimesApart(t *testing.T) {
	m := new(peerv1.Reply)
	var want []check.Reply
	for i := range 6 {
		r := check.Reply{Status: check.Decided, Owner: "b"}
		if i%2 == 1 {
			r.Denial = &bucket.Decision{RetryAfter: time.Duration(i)}
		}
		want = append(want, r)
	}
	writeReply(m, "b", want)
	for first := range want {
		got := make([]check.Reply, len(want)-first)
		readReply(m, first, "b", got)
		if !reflect.DeepEqual(got, want[first:]) {
			t.Errorf("from reply %d: %+v, want %+v", first, got, want[first:])
		}
	}
}
