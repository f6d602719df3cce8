package envoy

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
)

// spy is a limiter.Service that keeps what it was asked, and allows everything.
type spy struct {
	limiter.Service
	asked []string
}

func (s *spy) Check(_ context.Context, b *limiter.Batch) error {
	b.Results = make([]limiter.Result, len(b.Checks))
	for i := range b.Checks {
		c := &b.Checks[i]
		text := fmt.Sprintf("%v %d", c.Verb, c.Cost)
		if c.Drain {
			text += " drain"
		}
		if b.AllOrNothing {
			text += " all"
		}
		if !c.NoDelay {
			text += " may delay"
		}
		if !b.OneRequest {
			text += " alone"
		}
		s.asked = append(s.asked, text)
		b.Results[i].Allowed = true
		b.Results[i].Limits, _ = bucket.NewLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: 1e9})
	}
	return nil
}

// TestAsked: what the limiter is asked for each way of saying how many hits there were.
func TestAsked(t *testing.T) {
	hits := func(n uint64, back bool) *commonv3.RateLimitDescriptor {
		d := descriptor("user=ann")
		d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(n), back
		return d
	}
	back := descriptor("user=ann")
	back.IsNegativeHits = true
	for _, c := range []struct {
		descriptor  *commonv3.RateLimitDescriptor
		all         uint32
		each, whole string
	}{
		{descriptor("user=ann"), 0, "check 1", "check 1 all"},
		{descriptor("user=ann"), 1, "check 1", "check 1 all"},
		{descriptor("user=ann"), 7, "check 7 drain", "check 7 all"},
		{descriptor("user=ann"), math.MaxUint32, "check 4294967295 drain", "check 4294967295 all"},
		{hits(1, false), 7, "check 1", "check 1 all"},
		{hits(2, false), 0, "check 2 drain", "check 2 all"},
		{hits(math.MaxUint64, false), 0, "check 9223372036854775807 drain", "check 9223372036854775807 all"},
		{hits(0, false), 7, "read 0", "check 0 all"},
		{hits(0, true), 7, "read 0", "check 0 all"},
		{hits(5, true), 7, "refund 5", "read 0 all, refund 5 alone"},
		{back, 7, "refund 7", "read 0 all, refund 7 alone"},
		{back, 0, "refund 1", "read 0 all, refund 1 alone"},
	} {
		for _, together := range []bool{false, true} {
			s := new(spy)
			req := request("shop", c.descriptor)
			req.HitsAddend = c.all
			if _, err := open(t, Config{Limiter: s, AllOrNothing: together}).ShouldRateLimit(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			want := c.each
			if together {
				want = c.whole
			}
			if got := strings.Join(s.asked, ", "); got != want {
				t.Errorf("%v of %d hits, all or nothing %v: asked %q, want %q", c.descriptor, c.all, together, got, want)
			}
		}
	}
}
