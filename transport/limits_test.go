package transport

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	_ "github.com/sluicecluster/sluice/test/seeded"
)

// The wire's numbers are used as bucket's own, and those of check and this
// package; this is what says so.
func TestWireNumbers(t *testing.T) {
	for _, c := range []struct {
		name       string
		wire, here int32
	}{
		{"token bucket", int32(sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET), int32(bucket.TokenBucket)},
		{"leaky bucket", int32(sluicev1.Algorithm_ALGORITHM_LEAKY_BUCKET), int32(bucket.LeakyBucket)},
		{"leaky queue", int32(sluicev1.Algorithm_ALGORITHM_LEAKY_QUEUE), int32(bucket.LeakyQueue)},
		{"fixed window", int32(sluicev1.Algorithm_ALGORITHM_FIXED_WINDOW), int32(bucket.FixedWindow)},
		{"sliding log", int32(sluicev1.Algorithm_ALGORITHM_SLIDING_LOG), int32(bucket.SlidingLog)},
		{"sliding counter", int32(sluicev1.Algorithm_ALGORITHM_SLIDING_COUNTER), int32(bucket.SlidingCounter)},
		{"sliding window", int32(sluicev1.Algorithm_ALGORITHM_SLIDING_WINDOW), int32(bucket.SlidingWindow)},
		{"continuous", int32(sluicev1.Refill_REFILL_CONTINUOUS), int32(bucket.RefillContinuous)},
		{"interval", int32(sluicev1.Refill_REFILL_INTERVAL), int32(bucket.RefillInterval)},
		{"epoch", int32(sluicev1.Align_ALIGN_EPOCH), int32(bucket.AlignEpoch)},
		{"calendar", int32(sluicev1.Align_ALIGN_CALENDAR), int32(bucket.AlignCalendar)},
		{"first hit", int32(sluicev1.Align_ALIGN_FIRST_HIT), int32(bucket.AlignFirstHit)},
		{"minute", int32(sluicev1.CalendarUnit_CALENDAR_UNIT_MINUTE), int32(bucket.Minute)},
		{"hour", int32(sluicev1.CalendarUnit_CALENDAR_UNIT_HOUR), int32(bucket.Hour)},
		{"day", int32(sluicev1.CalendarUnit_CALENDAR_UNIT_DAY), int32(bucket.Day)},
		{"week", int32(sluicev1.CalendarUnit_CALENDAR_UNIT_WEEK), int32(bucket.Week)},
		{"month", int32(sluicev1.CalendarUnit_CALENDAR_UNIT_MONTH), int32(bucket.Month)},
		{"year", int32(sluicev1.CalendarUnit_CALENDAR_UNIT_YEAR), int32(bucket.Year)},
		{"check", int32(sluicev1.Verb_VERB_CHECK), int32(bucket.Check)},
		{"read", int32(sluicev1.Verb_VERB_READ), int32(bucket.Read)},
		{"charge", int32(sluicev1.Verb_VERB_CHARGE), int32(bucket.Charge)},
		{"refund", int32(sluicev1.Verb_VERB_REFUND), int32(bucket.Refund)},
		{"owned", int32(sluicev1.Source_SOURCE_OWNED), int32(check.Owned)},
		{"forwarded", int32(sluicev1.Source_SOURCE_FORWARDED), int32(check.Forwarded)},
		{"share", int32(sluicev1.Source_SOURCE_SHARE), int32(check.Share)},
		{"closed", int32(sluicev1.Source_SOURCE_CLOSED), int32(check.Closed)},
		{"open", int32(sluicev1.Source_SOURCE_OPEN), int32(check.Open)},
		{"unmatched", int32(sluicev1.Source_SOURCE_UNMATCHED), int32(check.Unmatched)},
		{"lease", int32(sluicev1.Source_SOURCE_LEASE), int32(check.Leased)},
		{"eventual", int32(sluicev1.Source_SOURCE_EVENTUAL), int32(check.Eventual)},
		{"lost state", int32(sluicev1.Source_SOURCE_LOST_STATE), int32(check.Lost)},
		{"invalid", int32(sluicev1.ErrorCode_ERROR_CODE_INVALID), int32(limiter.Invalid)},
		{"unknown domain", int32(sluicev1.ErrorCode_ERROR_CODE_UNKNOWN_DOMAIN), int32(limiter.UnknownDomain)},
		{"overloaded", int32(sluicev1.ErrorCode_ERROR_CODE_OVERLOADED), int32(limiter.Overloaded)},
		{"unavailable", int32(sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE), int32(limiter.Unavailable)},
		{"not found", int32(sluicev1.ErrorCode_ERROR_CODE_NOT_FOUND), int32(limiter.NotFound)},
		{"rejected", int32(sluicev1.ErrorCode_ERROR_CODE_REJECTED), int32(limiter.Rejected)},
		{"forbidden", int32(sluicev1.ErrorCode_ERROR_CODE_FORBIDDEN), int32(limiter.Forbidden)},
		{"unauthenticated", int32(sluicev1.ErrorCode_ERROR_CODE_UNAUTHENTICATED), int32(limiter.Unauthenticated)},
	} {
		if c.wire != c.here {
			t.Errorf("%s is %d on the wire and %d here", c.name, c.wire, c.here)
		}
	}
}

func TestLimitRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := bucket.Limit{
			Algorithm:   bucket.Algorithm(rapid.Uint8Range(1, uint8(bucket.SlidingWindow)).Draw(t, "algorithm")),
			Count:       rapid.Int64().Draw(t, "count"),
			Period:      time.Duration(rapid.Int64().Draw(t, "period")),
			Unlimited:   rapid.Bool().Draw(t, "unlimited"),
			Burst:       rapid.Int64().Draw(t, "burst"),
			Cost:        rapid.Int64().Draw(t, "cost"),
			Refill:      bucket.Refill(rapid.Uint8Range(0, uint8(bucket.RefillInterval)).Draw(t, "refill")),
			Align:       bucket.Align(rapid.Uint8Range(0, uint8(bucket.AlignFirstHit)).Draw(t, "align")),
			Unit:        bucket.Unit(rapid.Uint8Range(0, uint8(bucket.Year)).Draw(t, "unit")),
			Zone:        rapid.String().Draw(t, "zone"),
			MinInterval: time.Duration(rapid.Int64().Draw(t, "min_interval")),
			Soft:        rapid.Int32().Draw(t, "soft"),
			CountDenied: rapid.Bool().Draw(t, "count_denied"),
			SubWindows:  rapid.Int32().Draw(t, "sub_windows"),
			LogEntries:  rapid.Int32().Draw(t, "log_entries"),
			BlockFor:    time.Duration(rapid.Int64().Draw(t, "block_for")),
		}
		back, err := LimitFromProto(LimitToProto(l))
		if err != nil || back != l {
			t.Fatalf("%+v came back as %+v, error %v", l, back, err)
		}
	})
}

func TestLimitDefaults(t *testing.T) {
	for _, c := range []struct {
		name string
		wire *sluicev1.Limit
		want bucket.Limit
	}{
		{"nothing said", &sluicev1.Limit{}, bucket.Limit{Algorithm: bucket.FixedWindow}},
		{"no message", nil, bucket.Limit{Algorithm: bucket.FixedWindow}},
		{"unlimited needs no algorithm", &sluicev1.Limit{Unlimited: true}, bucket.Limit{Unlimited: true}},
	} {
		if got, err := LimitFromProto(c.wire); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestLimitsFromProto(t *testing.T) {
	good := func() *sluicev1.Limit { return &sluicev1.Limit{Count: 5, PeriodNs: int64(time.Minute)} }
	limits, err := LimitsFromProto("", "", []*sluicev1.Limit{good(), {Algorithm: sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET, Count: 1, PeriodNs: 1e9, Burst: 3}})
	if err != nil || limits.Len() != 2 || limits.At(0).Count != 5 || limits.At(1).Burst != 3 {
		t.Errorf("two limits: %v, %v", limits, err)
	}
	for _, c := range []struct {
		name  string
		spoil func(*sluicev1.Limit)
		field string
	}{
		{"algorithm above the list", func(l *sluicev1.Limit) { l.Algorithm = 9 }, "algorithm"},
		{"algorithm that fits after truncation", func(l *sluicev1.Limit) { l.Algorithm = 256 + 4 }, "algorithm"},
		{"negative algorithm", func(l *sluicev1.Limit) { l.Algorithm = -1 }, "algorithm"},
		{"refill", func(l *sluicev1.Limit) { l.Refill = 2 }, "refill"},
		{"align", func(l *sluicev1.Limit) { l.Align = 3 }, "align"},
		{"unit", func(l *sluicev1.Limit) { l.Unit = 7 }, "unit"},
		{"negative count", func(l *sluicev1.Limit) { l.Count = -1 }, "count"},
		{"zero period", func(l *sluicev1.Limit) { l.PeriodNs = 0 }, "period"},
		{"unknown zone", func(l *sluicev1.Limit) {
			l.Align, l.Unit, l.Timezone = sluicev1.Align_ALIGN_CALENDAR, sluicev1.CalendarUnit_CALENDAR_UNIT_DAY, "Mars/Olympus"
		}, "timezone"},
	} {
		bad := good()
		c.spoil(bad)
		_, err := LimitsFromProto("", "", []*sluicev1.Limit{good(), bad})
		fe, ok := errors.AsType[*bucket.FieldError](err)
		if !ok || fe.Index != 1 || fe.Field != c.field || fe.Reason == "" {
			t.Errorf("%s: error %#v, want one about %q of limit 1", c.name, err, c.field)
		}
	}
	for _, n := range []int{0, bucket.MaxLimits + 1, 100_000} {
		if _, err := LimitsFromProto("", "", make([]*sluicev1.Limit, n)); err == nil {
			t.Errorf("%d limits are accepted", n)
		}
	}
}
