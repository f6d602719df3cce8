package gubernator

import (
	"testing"

	"google.golang.org/protobuf/proto"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
)

// FuzzDecode: what the generated type reads, the hot call reads alike; what that rejects for other reasons than ignored metadata, it
// rejects.
func FuzzDecode(f *testing.F) {
	seed, err := proto.Marshal(&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{
		{Name: "n", UniqueKey: "k", Hits: 3, Limit: 10, Duration: 60_000, Algorithm: 1, Behavior: 35, Burst: 7, Metadata: map[string]string{"a": "b"}},
		{Name: "n", UniqueKey: "other", Hits: -1}, {},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var want gubernatorv1.GetRateLimitsReq
		if proto.Unmarshal(data, &want) != nil {
			return
		}
		var q question
		if err := q.DecodeWire(data); err != nil {
			t.Fatalf("%v, but the generated type reads %v", err, &want)
		}
		if q.count != len(want.Requests) || len(q.requests) != min(q.count, maxRequests) {
			t.Fatalf("%d requests, %d kept; want %d", q.count, len(q.requests), len(want.Requests))
		}
		for i := range q.requests {
			if got, want := q.requests[i], fromProto(want.Requests[i]); got != want {
				t.Fatalf("request %d: %+v; want %+v", i, got, want)
			}
		}
	})
}
