package peer

import (
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// unreserved is a peer of another minor. It refuses records without limits, as every node does, and knows
// no more.
func unreserved(hello *peerv1.Hello) foreign {
	return foreign{hello: hello, answer: func(q *peerv1.Request) *peerv1.Reply {
		m := &peerv1.Reply{}
		for i := range q.KeyLo {
			status := check.Decided
			if at(q.Limits, i) == 0 {
				status = check.Invalid
			}
			m.Status = append(m.Status, byte(status))
		}
		return m
	}}
}

// TestReserveToOlderPeer: a node that does not know reserves is not given the chance to admit against one.
func TestReserveToOlderPeer(t *testing.T) {
	for _, minor := range []uint32{minorReserve - 1, minorReserve} {
		network := newNetwork()
		config := network.config("b")
		hello := config.hello()
		hello.Minor = minor
		s := grpc.NewServer()
		peerv1.RegisterPeerServiceServer(s, unreserved(hello))
		l := network.listen("b:1")
		go s.Serve(l)
		pool := open(t, network.config("a"))
		limits, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 5, Period: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		records, replies := make([]check.Record, 2), make([]check.Reply, 2)
		for i := range records {
			records[i].Request = bucket.Request{Key: bucket.Key{Lo: uint64(i)}, Limits: limits, Cost: 1, Reserve: int64(i)}
		}
		if err := pool.Call(t.Context(), "b:1", records, replies); err != nil {
			t.Fatal(err)
		}
		want := check.Decided
		if minor < minorReserve {
			want = check.Invalid
		}
		if replies[0].Status != check.Decided || replies[1].Status != want {
			t.Errorf("minor %d answered %v and, with a reserve, %v", minor, replies[0].Status, replies[1].Status)
		}
		pool.Close()
		s.Stop()
	}
}
