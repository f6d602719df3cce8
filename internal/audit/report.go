package audit

import (
	"encoding/json"
	"time"

	"github.com/sluice-project/sluice/internal/audit/model"
)

// Seconds is a duration that JSON shows in seconds.
type Seconds time.Duration

// MarshalJSON writes seconds with their fraction.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

func (s Seconds) String() string { return time.Duration(s).String() }

// Report is what an audit found. Times within the run count from Began.
type Report struct {
	Began time.Time `json:"began"`
	Took  Seconds   `json:"took"`
	// Run is what the descriptors' values of this run begin with.
	Run   string   `json:"run"`
	Nodes []string `json:"nodes"`
	// Callers that asked, and the checks that they made together in a second.
	Callers int     `json:"callers"`
	Rate    float64 `json:"rate"`

	// Checks = Admitted + Denied + FinalErrors.
	Checks      int64 `json:"checks"`
	Admitted    int64 `json:"admitted"`
	Denied      int64 `json:"denied"`
	FinalErrors int64 `json:"final_errors"`
	// Sources are who decided: held and forwarded are an owner's answers, share,
	// closed and open those of on_failure and on_partition.
	Sources map[string]Decided `json:"sources"`

	// Over: keys that were admitted more than their limit allows, and by how many units at
	// least. OverHeld is the same for what owners admitted, without shares and open answers.
	Over     Keys `json:"over_quota"`
	OverHeld Keys `json:"over_quota_by_owners"`
	// Under: keys that an owner denied although units were free, and how many at least, if
	// each ambiguous attempt has been charged.
	Under Keys `json:"under_quota"`
	// AtLimit is the number of keys that an owner denied at least once: only those can be under quota.
	AtLimit int `json:"at_limit"`
	// Unexhausted keys were not denied as often as Exhaust asks within its time.
	Unexhausted int `json:"unexhausted"`
	// Faults are the worst keys, at most MaxFaults.
	Faults []Fault `json:"faults"`

	// AmbiguousRetries are attempts of checks that may have been charged without an answer;
	// ReroutedCalls were sent to a node after another had failed them.
	AmbiguousRetries int64       `json:"ambiguous_retries"`
	ReroutedCalls    int64       `json:"rerouted_calls"`
	Errors           []ErrorKind `json:"errors"`

	// Latency is that of checks with an answer, from when they were sent first.
	Latency Latency `json:"latency"`
	// Gaps are the keys that waited longest for an owner, at most MaxGaps.
	Gaps     []Gap        `json:"gaps"`
	Specs    []SpecReport `json:"specs"`
	Timeline []Slot       `json:"timeline"`
}

// The most that a Report lists.
const (
	MaxFaults = 20
	MaxGaps   = 10
)

// Decided counts answers.
type Decided struct {
	Admitted int64 `json:"admitted"`
	Denied   int64 `json:"denied"`
}

// Keys counts keys at fault, and units over all of them.
type Keys struct {
	Keys  int   `json:"keys"`
	Units int64 `json:"units"`
}

// add counts one key, if it is at fault by any units.
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

// Fault is a key whose limit was not kept.
type Fault struct {
	Key       string `json:"key"`
	Spec      string `json:"spec"`
	Over      int64  `json:"over"`
	OverHeld  int64  `json:"over_by_owners"`
	Under     int64  `json:"under"`
	Admitted  int64  `json:"admitted"`
	Denied    int64  `json:"denied"`
	Ambiguous int64  `json:"ambiguous_retries"`
	// DeniedAt is when the check was sent that should not have been denied.
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
	Spec     string `json:"spec"`
	Keys     int    `json:"keys"`
	Admitted int64  `json:"admitted"`
	Denied   int64  `json:"denied"`
	AtLimit  int    `json:"at_limit"`
	Over     Keys   `json:"over_quota"`
	OverHeld Keys   `json:"over_quota_by_owners"`
	Under    Keys   `json:"under_quota"`
}

// LongestGap returns the longest of all keys, zero if nothing was asked.
func (r *Report) LongestGap() Gap {
	if len(r.Gaps) == 0 {
		return Gap{}
	}
	return r.Gaps[0]
}

// Clean reports whether no limit was seen broken, nothing was denied that should not have
// been, and every check had an answer. It says nothing about how much was tested: see Verdict.
func (r *Report) Clean() bool {
	return r.Over.Keys == 0 && r.Under.Keys == 0 && r.FinalErrors == 0
}

// Verdict is what an audit has shown.
type Verdict string

// The verdicts.
const (
	// Pass: enough keys reached their limit, and nothing was wrong.
	Pass Verdict = "PASS"
	// Fail: a key is over or under its quota, or a check had no answer.
	Fail Verdict = "FAIL"
	// Inconclusive: nothing was wrong, and too few keys reached their limit to show that limits are kept.
	Inconclusive Verdict = "INCONCLUSIVE"
)

// minAtLimit is the part of the keys of each Spec that must reach their limit for Pass. A key below its limit shows
// nothing: nodes that give each key its quota several times admit the same.
const minAtLimit = 0.9

// Verdict judges the whole run. With Exhaust every key must have been denied as often as it asks.
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

// verdict is what the log of one key shows.
type verdict struct {
	asked, admitted, denied int64
	// reached: an owner denied it at least once.
	reached bool
	// ambiguous attempts may each have charged one more.
	ambiguous int64
	// Units admitted above the limit: in all, and counting only what owners admitted.
	over, overHeld int64
	// Units that were free when an owner denied a check, at the worst denial.
	under   int64
	underAt int64 // when that was sent
	gap     span
}

// judge judges a key by its records, at least one.
func judge(m *model.Model, records []record) verdict {
	v := verdict{asked: records[0].first}
	var all, held, denials, charges []model.Span
	for i := range records {
		r := &records[i]
		v.asked = min(v.asked, r.first)
		v.ambiguous += int64(r.ambiguous)
		for range r.ambiguous {
			charges = append(charges, model.Span{From: r.first, To: model.Open})
		}
		made := model.Span{From: r.sent, To: r.answered}
		switch {
		case r.outcome == admitted && r.held():
			v.admitted++
			all, held, charges = append(all, made), append(held, made), append(charges, made)
		case r.outcome == admitted:
			v.admitted++
			all = append(all, made)
			// A share is charged to the owner when it can be reached again.
			charges = append(charges, model.Span{From: r.sent, To: model.Open})
		case r.outcome == denied:
			v.denied++
			// A lease that is used up denies what others may still spend.
			if r.held() && !r.granted() {
				denials = append(denials, made)
			}
		}
	}
	v.over = m.Over(v.asked, all)
	if v.overHeld = v.over; len(held) < len(all) {
		v.overHeld = m.Over(v.asked, held)
	}
	v.reached = len(denials) > 0
	var which int
	if v.under, which = m.Under(charges, denials); v.under > 0 {
		v.underAt = denials[which].From
	}
	v.gap = longestGap(records)
	return v
}

// slotLength is how finely the timeline is divided.
const slotLength = 100 * time.Millisecond

// Slot is what happened in a tenth of a second of the run.
type Slot struct {
	At Seconds `json:"at"`
	// Checks that ended, Errors of attempts, and the longest that a check which ended had waited.
	Checks     int64   `json:"checks"`
	Errors     int64   `json:"errors"`
	MaxLatency Seconds `json:"max_latency"`
}

// timeline is a run in slots, the first one at its beginning.
type timeline []Slot

// slot returns the one of the time since the beginning (ns).
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
