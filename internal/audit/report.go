package audit

import (
	"encoding/json"
	"time"

	"github.com/sluicecluster/sluice/internal/audit/model"
)

// Seconds is a duration that JSON shows in seconds.
type Seconds time.Duration

// MarshalJSON writes seconds with their fraction.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

func (s Seconds) String() string { return time.Duration(s).String() }

// Report is the result of an audit. Times within the run count from Began.
type Report struct {
	Began   time.Time `json:"began"`
	Took    Seconds   `json:"took"`
	Run     string    `json:"run"` // the prefix of the descriptors' values of this run
	Nodes   []string  `json:"nodes"`
	Callers int       `json:"callers"`
	Rate    float64   `json:"rate"` // checks per second of all callers

	// Checks = Admitted + Denied + FinalErrors.
	Checks      int64 `json:"checks"`
	Admitted    int64 `json:"admitted"`
	Denied      int64 `json:"denied"`
	FinalErrors int64 `json:"final_errors"`
	// Sources count decisions by source: those of owners (owned, forwarded, lease) and those of on_failure and on_partition
	// (share, closed, open).
	Sources map[string]Decided `json:"sources"`

	// Over is over-admission: keys, and units at least. OverByOwners is the same for owners' decisions only.
	Over         Keys `json:"over_quota"`
	OverByOwners Keys `json:"over_quota_by_owners"`
	// Under is under-admission: keys that an owner denied although units were free, and units at least, if each ambiguous
	// attempt was charged.
	Under Keys `json:"under_quota"`
	// AtLimit is the number of keys that an owner denied at least once: only those can be under quota.
	AtLimit int `json:"at_limit"`
	// Unexhausted keys were not denied as often as Exhaust wants within its time.
	Unexhausted int `json:"unexhausted"`
	// Violations are the worst 20 keys.
	Violations []Violation `json:"violations"`

	// AmbiguousRetries are attempts that may have been charged without a decision; ReroutedCalls were sent to another node
	// after a failure.
	AmbiguousRetries int64       `json:"ambiguous_retries"`
	ReroutedCalls    int64       `json:"rerouted_calls"`
	Errors           []ErrorKind `json:"errors"`

	// Latency is that of decided checks, from their first attempt on.
	Latency Latency `json:"latency"`
	// Gaps are the 10 longest waits for an owner, one for each key.
	Gaps     []Gap        `json:"gaps"`
	Specs    []SpecReport `json:"specs"`
	Timeline []Slot       `json:"timeline"`
}

const (
	maxViolations = 20
	maxGaps       = 10
)

// Decided counts decisions.
type Decided struct {
	Admitted int64 `json:"admitted"`
	Denied   int64 `json:"denied"`
}

// Keys counts keys, and units of all of them.
type Keys struct {
	Keys  int   `json:"keys"`
	Units int64 `json:"units"`
}

// add counts one key with so many units, if any.
func (k *Keys) add(units int64) {
	if units > 0 {
		k.Keys++
		k.Units += units
	}
}

// merge adds other keys.
func (k *Keys) merge(other Keys) {
	k.Keys += other.Keys
	k.Units += other.Units
}

// Violation is a key with over-admission or under-admission.
type Violation struct {
	Key          string `json:"key"`
	Spec         string `json:"spec"`
	Over         int64  `json:"over"`
	OverByOwners int64  `json:"over_by_owners"`
	Under        int64  `json:"under"`
	Admitted     int64  `json:"admitted"`
	Denied       int64  `json:"denied"`
	Ambiguous    int64  `json:"ambiguous_retries"`
	// DeniedAt is when the wrongly denied check was sent.
	DeniedAt Seconds `json:"denied_at,omitempty"`
}

// Latency in percentiles.
type Latency struct {
	P50 Seconds `json:"p50"`
	P99 Seconds `json:"p99"`
	Max Seconds `json:"max"`
}

// SpecReport is the part of one Spec.
type SpecReport struct {
	Spec         string `json:"spec"`
	Keys         int    `json:"keys"`
	Admitted     int64  `json:"admitted"`
	Denied       int64  `json:"denied"`
	AtLimit      int    `json:"at_limit"`
	Over         Keys   `json:"over_quota"`
	OverByOwners Keys   `json:"over_quota_by_owners"`
	Under        Keys   `json:"under_quota"`
}

// LongestGap returns the longest of all keys, or zero.
func (r *Report) LongestGap() Gap {
	if len(r.Gaps) == 0 {
		return Gap{}
	}
	return r.Gaps[0]
}

// Clean reports whether there is no over-admission, no under-admission and no check without a decision. See Verdict for
// whether enough was tested.
func (r *Report) Clean() bool {
	return r.Over.Keys == 0 && r.Under.Keys == 0 && r.FinalErrors == 0
}

// Verdict is the result of an audit in a word.
type Verdict string

const (
	Pass         Verdict = "PASS"         // the report is clean, and enough keys reached their limit
	Fail         Verdict = "FAIL"         // it is not clean
	Inconclusive Verdict = "INCONCLUSIVE" // it is clean, and too few keys reached their limit
)

// minAtLimit is the part of the keys of each Spec that must reach their limit for Pass. A key below its limit proves
// nothing: nodes that give each key its quota several times admit the same.
const minAtLimit = 0.9

// Verdict judges the run. With Exhaust every key must have been denied as often as it wants.
func (r *Report) Verdict() Verdict {
	switch {
	case !r.Clean():
		return Fail
	case len(r.Specs) == 0 || r.Unexhausted > 0:
		return Inconclusive
	}
	for _, s := range r.Specs {
		if float64(s.AtLimit) < minAtLimit*float64(s.Keys) {
			return Inconclusive
		}
	}
	return Pass
}

// verdict is the result of the records of one key.
type verdict struct {
	admitted, denied   int64
	reached            bool  // an owner denied it at least once
	ambiguous          int64 // attempts that may have been charged
	over, overByOwners int64 // units admitted above the limit: by all sources, and by owners
	under, underAt     int64 // units that were free at the worst denial by an owner, and when that was sent
	gap                span
}

// judge judges a key by its records, at least one.
func judge(m *model.Model, records []record) verdict {
	var v verdict
	asked := records[0].first
	var all, byOwners, denials, charges []model.Span
	for i := range records {
		r := &records[i]
		asked = min(asked, r.first)
		v.ambiguous += int64(r.ambiguous)
		for range r.ambiguous {
			charges = append(charges, model.Span{From: r.first, To: model.Open})
		}
		made := model.Span{From: r.sent, To: r.answered}
		switch {
		case r.outcome == admitted && r.byOwner():
			v.admitted++
			all, byOwners, charges = append(all, made), append(byOwners, made), append(charges, made)
		case r.outcome == admitted:
			v.admitted++
			all = append(all, made)
			// A share is charged when the owner can be reached again.
			charges = append(charges, model.Span{From: r.sent, To: model.Open})
		case r.outcome == denied:
			v.denied++
			// A used-up lease denies units that others may still spend.
			if r.byOwner() && !r.leased() {
				denials = append(denials, made)
			}
		}
	}
	v.over = m.Over(asked, all)
	if v.overByOwners = v.over; len(byOwners) < len(all) {
		v.overByOwners = m.Over(asked, byOwners)
	}
	v.reached = len(denials) > 0
	var which int
	if v.under, which = m.Under(charges, denials); v.under > 0 {
		v.underAt = denials[which].From
	}
	v.gap = longestGap(records)
	return v
}

const slotLength = 100 * time.Millisecond

// Slot is a tenth of a second of the run.
type Slot struct {
	At         Seconds `json:"at"`
	Checks     int64   `json:"checks"`      // that ended
	Errors     int64   `json:"errors"`      // of attempts
	MaxLatency Seconds `json:"max_latency"` // of the checks that ended
}

// timeline is a run in slots, the first one at its beginning.
type timeline []Slot

// slot returns the slot at a time since the beginning (ns).
func (t *timeline) slot(since int64) *Slot {
	i := int(max(0, since) / int64(slotLength))
	for len(*t) <= i {
		*t = append(*t, Slot{At: Seconds(len(*t)) * Seconds(slotLength)})
	}
	return &(*t)[i]
}

func (t *timeline) answered(since, latency int64) {
	s := t.slot(since)
	s.Checks++
	s.MaxLatency = max(s.MaxLatency, Seconds(latency))
}

func (t *timeline) failed(since int64) { t.slot(since).Errors++ }

// merge adds another timeline of the same run.
func (t *timeline) merge(other timeline) {
	for i, o := range other {
		s := t.slot(int64(i) * int64(slotLength))
		s.Checks += o.Checks
		s.Errors += o.Errors
		s.MaxLatency = max(s.MaxLatency, o.MaxLatency)
	}
}
