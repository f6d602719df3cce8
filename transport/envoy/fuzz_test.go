package envoy

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicecluster/sluice/test/apitest"
)

// FuzzShouldRateLimit: whatever bytes come, the answer has a status for each descriptor and can be
// sent, or the fault of the request is told and nothing was charged.
func FuzzShouldRateLimit(f *testing.F) {
	full := request("shop", descriptor("user=ann"), descriptor("watched=x", "y="))
	full.HitsAddend = 3
	full.Descriptors[0].HitsAddend = wrapperspb.UInt64(1 << 63)
	full.Descriptors[0].IsNegativeHits = true
	full.Descriptors[1].Limit = &override{RequestsPerUnit: 1, Unit: 6, UnitMultiplier: wrapperspb.UInt32(100)}
	f.Add([]byte("\n\x04shop\x12\x0c\n\n\n\x04user\x12\x02\xff\xfe"), true)
	for _, seed := range []*ratelimitv3.RateLimitRequest{nil, request("shop"), request("", descriptor("a=b")), full} {
		data, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, false)
		f.Add(data, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, together bool) {
		req := newRequest()
		if err := decode(data, req); err != nil {
			if proto.Unmarshal(data, new(ratelimitv3.RateLimitRequest)) == nil {
				t.Fatalf("what the generated type reads is not read: %v", err)
			}
			return
		}
		n := apitest.NewNode(t)
		d := open(t, Config{Limiter: newLimiter(t, n, apitest.Rules), AllOrNothing: together, ResponseHeaders: true, DynamicMetadata: true})
		res, err := d.ShouldRateLimit(t.Context(), req)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument || n.Asked.Load() != 0 {
				t.Fatalf("%v: error %v with %d checks decided", req, err, n.Asked.Load())
			}
			return
		}
		if len(res.GetStatuses()) != len(req.GetDescriptors()) || res.GetOverallCode() == ratelimitv3.RateLimitResponse_UNKNOWN {
			t.Fatalf("%v: %v", req, res)
		}
		if _, err := proto.Marshal(res); err != nil {
			t.Fatalf("%v: %v", req, err)
		}
	})
}
