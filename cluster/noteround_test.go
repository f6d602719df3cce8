package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/check"
)

// BenchmarkNoteRound is what remembering the answers costs a forwarded check, of 65,536 keys in turn, in rounds of one and of a
// thousand. The rest of a round is at hand, as it is when answers come; without=true is the bench itself.
func BenchmarkNoteRound(b *testing.B) {
	limits := hourly(1000)
	keys := make([]bucket.Key, 1<<16)
	for i := range keys {
		keys[i] = bucket.Key{Hi: rand.Uint64(), Lo: rand.Uint64()}
	}
	for _, size := range []int{1, 1000} {
		for _, without := range []bool{true, false} {
			b.Run(fmt.Sprintf("checks=%d/without=%v", size, without), func(b *testing.B) {
				f := &forwarding{batch: &check.Batch{}, node: &Node{shares: new(share.Shares)}}
				for j := range size {
					f.batch.Requests = append(f.batch.Requests, check.Request{Request: bucket.Request{Limits: limits}})
					f.batch.Answers = append(f.batch.Answers, check.Answer{Source: check.Forwarded, Decision: bucket.Decision{Remaining: 5}})
					f.pending = append(f.pending, pending{index: j, remote: true, done: true})
				}
				b.ReportAllocs()
				next := 0
				for b.Loop() {
					f.sent++
					for j := range f.batch.Requests {
						f.batch.Requests[j].Key = keys[next%len(keys)]
						next++
					}
					if !without {
						f.rememberAnswers()
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/check")
			})
		}
	}
}
