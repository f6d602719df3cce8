package report

import (
	"math"
	"slices"
)

// Spread is the median of several figures, and the lowest and highest of them.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// SpreadOf returns the Spread of values; all NaN if there are none.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	middle := v[len(v)/2]
	if len(v)%2 == 0 {
		middle = (middle + v[len(v)/2-1]) / 2
	}
	return Spread{middle, v[0], v[len(v)-1]}
}

// Figure reads one number of a Round.
type Figure func(r *Round) float64

// Figures of a Round.
var (
	Calls     Figure = func(r *Round) float64 { return r.CallsPerSecond }
	Checks    Figure = func(r *Round) float64 { return r.ChecksPerSecond }
	P50       Figure = func(r *Round) float64 { return r.P50 }
	P99       Figure = func(r *Round) float64 { return r.P99 }
	P999      Figure = func(r *Round) float64 { return r.P999 }
	ServerCPU Figure = func(r *Round) float64 { return r.ServerCPU }
	GCShare   Figure = func(r *Round) float64 { return r.GCShare }
	Resident  Figure = func(r *Round) float64 { return float64(r.Resident) }
)

// Of is the spread of a figure over the rounds of s.
func (s *Series) Of(f Figure) Spread {
	var values []float64
	for i := range s.Rounds {
		values = append(values, f(&s.Rounds[i]))
	}
	return SpreadOf(values)
}

// Ratio is the spread of a figure of s to that of base in the same round.
func (s *Series) Ratio(base *Series, f Figure) Spread { return SpreadOf(s.Over(base, f)) }

// Over has, round by round, a figure of s in ratio to that of base.
func (s *Series) Over(base *Series, f Figure) []float64 {
	var values []float64
	for i := range min(len(s.Rounds), len(base.Rounds)) {
		values = append(values, f(&s.Rounds[i])/f(&base.Rounds[i]))
	}
	return values
}
