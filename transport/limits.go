package transport

import (
	"fmt"
	"math"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// The wire's enums are numbered as bucket numbers its own, so a range check is
// all the translation they need. A test holds the two lists together.

// LimitToProto returns l as it travels, inside a check or between nodes.
func LimitToProto(l bucket.Limit) *sluicev1.Limit {
	return &sluicev1.Limit{
		Algorithm:     sluicev1.Algorithm(l.Algorithm),
		Count:         l.Count,
		PeriodNs:      int64(l.Period),
		Unlimited:     l.Unlimited,
		Burst:         l.Burst,
		Weight:        l.Cost,
		Refill:        sluicev1.Refill(l.Refill),
		Align:         sluicev1.Align(l.Align),
		Unit:          sluicev1.CalendarUnit(l.Unit),
		Timezone:      l.Zone,
		MinIntervalNs: int64(l.MinInterval),
		SoftPercent:   l.Soft,
		CountDenied:   l.CountDenied,
		SubWindows:    l.SubWindows,
		LogEntries:    l.LogEntries,
		BlockForNs:    int64(l.BlockFor),
	}
}

// LimitFromProto returns the limit that p spells. An unspecified algorithm is a
// fixed window, unless the limit is unlimited and needs none. It rejects only what a bucket.Limit cannot express, an enum out
// of range, with a *bucket.FieldError; all else is bucket.NewLimits' to judge.
// A nil p is an empty message.
func LimitFromProto(p *sluicev1.Limit) (bucket.Limit, error) {
	algorithm, err := enum[bucket.Algorithm]("algorithm", int32(p.GetAlgorithm()), int32(bucket.Concurrency))
	if err != nil {
		return bucket.Limit{}, err
	}
	if algorithm == 0 && !p.GetUnlimited() {
		algorithm = bucket.FixedWindow
	}
	refill, err := enum[bucket.Refill]("refill", int32(p.GetRefill()), int32(bucket.RefillInterval))
	if err != nil {
		return bucket.Limit{}, err
	}
	align, err := enum[bucket.Align]("align", int32(p.GetAlign()), int32(bucket.AlignFirstHit))
	if err != nil {
		return bucket.Limit{}, err
	}
	unit, err := enum[bucket.Unit]("unit", int32(p.GetUnit()), int32(bucket.Year))
	if err != nil {
		return bucket.Limit{}, err
	}
	return bucket.Limit{
		Algorithm:   algorithm,
		Count:       p.GetCount(),
		Period:      time.Duration(p.GetPeriodNs()),
		Unlimited:   p.GetUnlimited(),
		Burst:       p.GetBurst(),
		Cost:        p.GetWeight(),
		Refill:      refill,
		Align:       align,
		Unit:        unit,
		Zone:        p.GetTimezone(),
		MinInterval: time.Duration(p.GetMinIntervalNs()),
		Soft:        p.GetSoftPercent(),
		CountDenied: p.GetCountDenied(),
		SubWindows:  p.GetSubWindows(),
		LogEntries:  p.GetLogEntries(),
		BlockFor:    time.Duration(p.GetBlockForNs()),
	}, nil
}

// LimitsFromProto returns the set that ps spells for the domain, of the home region, validated. The error is a
// *bucket.FieldError whose Index is the place in ps.
func LimitsFromProto(domain, home string, ps []*sluicev1.Limit) (*bucket.Limits, error) {
	// One more than allowed is enough for NewLimits to reject the set, however
	// many a peer or a client sent.
	if len(ps) > bucket.MaxLimits+1 {
		ps = ps[:bucket.MaxLimits+1]
	}
	list := make([]bucket.Limit, len(ps))
	for i, p := range ps {
		l, err := LimitFromProto(p)
		if err != nil {
			return nil, AtLimit(err, i)
		}
		list[i] = l
	}
	return bucket.NewLimitsAt(domain, home, list...)
}

// AtLimit returns err with the place of the limit it is about.
func AtLimit(err error, index int) error {
	fe, ok := err.(*bucket.FieldError)
	if !ok {
		return err
	}
	at := *fe
	at.Index = index
	return &at
}

// enum narrows a wire value to one of bucket's enums, 0 to last.
func enum[E ~uint8](field string, v, last int32) (E, error) {
	if v < 0 || v > last || v > math.MaxUint8 {
		return 0, &bucket.FieldError{Field: field, Reason: fmt.Sprintf("unknown value %d; want 0 to %d", v, last)}
	}
	return E(v), nil
}
