package cluster

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
)

// direct reaches other nodes by calling them, without a network.
type direct map[string]*Node

func (direct) HangUp(string) {}

func (direct) Retain([]string) {}

func (direct) Post(string, message.Envelope) {}

func (d direct) Call(_ context.Context, addr string, records []check.Record, replies []check.Reply) error {
	d[addr].Serve("a-boot", records, replies)
	return nil
}

// BenchmarkDecide is what the node itself takes: for checks that it holds, and for
// those of which two thirds are held by two others.
func BenchmarkDecide(b *testing.B) {
	peers := direct{}
	names := []string{"a", "b", "c"}
	for _, name := range names {
		table := tableOf(b, ring.DefaultPartitions)
		n, err := New(Config{Name: name, Boot: bootOf(name), Peers: peers}, table)
		must(b, err)
		pose(n, viewOf(1, names...))
		peers[name+":7462"] = n
	}
	a := peers["a:7462"]
	limits := hourly(1 << 40)
	for _, where := range []string{"a", "b", "abc"} {
		for _, size := range []int{1, 3, 1000} {
			batch := check.Batch{Answers: make([]check.Answer, size)}
			for i := range size {
				batch.Requests = append(batch.Requests, request(a, string(where[i%len(where)]), i, limits))
			}
			for _, whole := range []bool{false, true} {
				batch.AllOrNothing = whole
				b.Run(fmt.Sprintf("owners=%s/checks=%d/whole=%v", where, size, whole), func(b *testing.B) {
					ctx := b.Context()
					b.ReportAllocs()
					for b.Loop() {
						a.Decide(ctx, &batch)
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/check")
				})
			}
		}
	}
}
