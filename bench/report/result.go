// Package report keeps measurements, prints them as tables, saves them as JSON and draws them as SVG.
package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// File is the results of one run of the harness.
type File struct {
	Date     time.Time `json:"date"`
	Revision string    `json:"sluice_revision"`
	Machine  Machine   `json:"machine"`
	Rows     []Row     `json:"rows,omitempty"`
	Cells    []Cell    `json:"cells"`
}

// Machine describes where it ran.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	OS    string `json:"os"`
	Go    string `json:"go"`
}

// Shape is the work of a Cell, the same for all systems unless a Series' name says otherwise.
type Shape struct {
	Nodes        int    `json:"nodes"`
	Callers      int    `json:"callers"`
	Checks       int    `json:"checks"`
	Keys         int    `json:"keys"`
	Distribution string `json:"distribution"`
	Domain       string `json:"domain"`
	Note         string `json:"note,omitempty"` // distinguishes otherwise equal shapes
}

func (s Shape) String() string {
	text := fmt.Sprintf("nodes: %d, callers: %d, checks a call: %d, keys: %d %s, domain: %s", s.Nodes, s.Callers, s.Checks, s.Keys, s.Distribution, s.Domain)
	if s.Note != "" {
		text += ", " + s.Note
	}
	return text
}

// Cell is one shape of work, done by several systems in turns.
type Cell struct {
	Shape  Shape    `json:"shape"`
	Series []Series `json:"series"`
}

// Ratio is the spread of a figure of the series of to that of base in the same round. Both are indexes.
func (c *Cell) Ratio(of, base int, f Figure) Spread { return c.Series[of].Ratio(&c.Series[base], f) }

// Series is one system's rounds in a Cell. Rounds with the same index ran one after the other.
type Series struct {
	Name string `json:"name"`
	// Keys and Nodes are set where they differ from the Shape's.
	Keys   int     `json:"keys,omitempty"`
	Nodes  int     `json:"nodes,omitempty"`
	Rounds []Round `json:"rounds"`
}

// Round is one measurement.
type Round struct {
	CallsPerSecond  float64 `json:"calls_per_second"`
	ChecksPerSecond float64 `json:"checks_per_second"`
	// Latency of calls in µs.
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	// CPU seconds of the servers, and of the client, per million checks.
	ServerCPU float64 `json:"server_cpu_s_per_million"`
	ClientCPU float64 `json:"client_cpu_s_per_million"`
	// GCShare is the collectors' part of the servers' CPU time.
	GCShare float64 `json:"gc_share"`
	// Resident memory of the servers at the end, in bytes.
	Resident int64 `json:"resident_bytes"`
	// Shares of the checks.
	Denied    float64 `json:"denied,omitempty"`
	Failed    float64 `json:"failed,omitempty"`
	Forwarded float64 `json:"forwarded,omitempty"`
	Fallback  float64 `json:"fallback,omitempty"`
	// FailedCalls had no answer.
	FailedCalls int64  `json:"failed_calls,omitempty"`
	FirstError  string `json:"first_error,omitempty"`
}

// Save writes results to path as JSON.
func Save(path string, results any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Load reads what Save wrote.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &File{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Spread is the median, lowest and highest of several figures.
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
