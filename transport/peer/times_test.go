package peer

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// several is a call of one record of n checks.
func several(n int64) []check.Record {
	return []check.Record{{Request: bucket.Request{Cost: 1}, Times: n}}
}

// TestTimes: how many checks a record is travels, and what became of each of them.
func TestTimes(t *testing.T) {
	network := newNetwork()
	denial := &bucket.Decision{Index: 2, Limit: 9, Remaining: 1, ResetAfter: time.Minute, RetryAfter: time.Second}
	want := []check.Reply{
		{Status: check.Decided, Holder: "b", Granted: 4, Decision: bucket.Decision{Allowed: true, Limit: 9, Remaining: 5}},
		{Status: check.Decided, Holder: "b", Granted: 2, Decision: bucket.Decision{Allowed: true, Limit: 9, Remaining: 1}, Denial: denial},
		{Status: check.Decided, Holder: "b", Decision: *denial},
		{Status: check.Decided, Holder: "b", Granted: 7, Grant: 9, For: time.Second, Lent: true},
		{Status: check.Decided, Holder: "b", Granted: 1, Decision: bucket.Decision{Allowed: true, Limit: 1}, Denial: &bucket.Decision{Limit: 1, RetryAfter: 1}},
	}
	var times []int64
	var lend, back check.Record
	network.serve(t, "b:1", network.config("b"), handlerFunc(func(_ string, records []check.Record, replies []check.Reply) {
		for i, r := range records {
			times = append(times, r.Times)
			switch {
			case r.Lend:
				lend = r
			case r.Return:
				back = r
			}
			replies[i] = want[r.ID]
		}
	}))
	pool := open(t, network.config("a"))
	records := []check.Record{{Times: 4}, {Times: 3, ID: 1}, {Times: 1024, ID: 2}, {Lend: true, Want: 1, Rate: 2, For: 3, ID: 3}, {Return: true, Want: 5, ID: 4}}
	got := make([]check.Reply, len(records))
	if err := pool.Call(t.Context(), "b:1", records, got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if !reflect.DeepEqual(times, []int64{4, 3, 1024, 0, 0}) || lend != records[3] || back != records[4] {
		t.Errorf("records of %v checks, %+v, %+v", times, lend, back)
	}
}

// TestTimesApart: two calls in one frame get their own denials.
func TestTimesApart(t *testing.T) {
	m := new(peerv1.Reply)
	var want []check.Reply
	for i := range 6 {
		r := check.Reply{Status: check.Decided, Holder: "b"}
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

// foreign is a peer that says hello as it likes, and answers requests by hand.
type foreign struct {
	peerv1.UnimplementedPeerServiceServer
	hello  *peerv1.Hello
	answer func(q *peerv1.Request) *peerv1.Reply
}

func (f foreign) Exchange(stream serverStream) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for m := (&peerv1.Reply{Hello: f.hello}); ; {
		if err := stream.Send(m); err != nil {
			return err
		}
		q, err := stream.Recv()
		if err != nil {
			return err
		}
		m = f.answer(q)
		m.Seq = q.Seq
	}
}

// aged is a peer of another minor that decides every record once.
func aged(hello *peerv1.Hello) foreign {
	return foreign{hello: hello, answer: func(q *peerv1.Request) *peerv1.Reply {
		m := &peerv1.Reply{Status: make([]byte, len(q.KeyLo)), Remaining: q.Cost}
		for i := range m.Status {
			m.Status[i] = byte(check.Decided)
		}
		return m
	}}
}

// TestCombines: only a node that is known to know records of several checks is said to take them, and no other
// is ever sent one.
func TestCombines(t *testing.T) {
	for _, minor := range []uint32{Minor - 1, Minor} {
		network := newNetwork()
		config := network.config("b")
		hello := config.hello()
		hello.Minor = minor
		s := grpc.NewServer()
		peerv1.RegisterPeerServiceServer(s, aged(hello))
		l := network.listen("b:1")
		go s.Serve(l)
		pool := open(t, network.config("a"))
		if pool.Combines("b:1") || pool.Combines("c:1") {
			t.Error("a node that nobody has met combines")
		}
		if err := ask(t.Context(), pool, "b:1", 1); err != nil {
			t.Error(err)
		}
		if got := pool.Combines("b:1"); got != (minor >= 2) {
			t.Errorf("minor %d combines: %v", minor, got)
		}
		err := pool.Call(t.Context(), "b:1", []check.Record{{Lend: true}}, make([]check.Reply, 1))
		if (minor < 2) != errors.Is(err, check.ErrUnsent) {
			t.Errorf("a lease of minor %d: %v", minor, err)
		}
		err = pool.Call(t.Context(), "b:1", several(2), make([]check.Reply, 1))
		if old := minor < 2; old != errors.Is(err, check.ErrUnsent) || old && !strings.Contains(err.Error(), "older version") {
			t.Errorf("two checks to minor %d: %v", minor, err)
		}
		if err := pool.Call(t.Context(), "b:1", several(1), make([]check.Reply, 1)); err != nil {
			t.Errorf("one check to minor %d: %v", minor, err)
		}
		pool.Close()
		s.Stop()
	}
}
