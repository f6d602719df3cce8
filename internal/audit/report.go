package audit

import (
	"encoding/json"
	"time"
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
	// Sources are who decided: held and forwarded are a holder's answers, share,
	// closed and open those of on_failure and on_partition.
	Sources map[string]Decided `json:"sources"`

	// Over: keys that were admitted more than their limit allows, and by how many units at
	// least. OverHeld is the same for what holders admitted, without shares and open answers.
	Over     Keys `json:"over_quota"`
	OverHeld Keys `json:"over_quota_by_holders"`
	// Under: keys that a holder denied although units were free, and how many at least, if
	// each ambiguous attempt has been charged.
	Under Keys `json:"under_quota"`
	// AtLimit is the number of keys that a holder denied at least once: only those can be under quota.
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
	// Gaps are the keys that waited longest for a holder, at most MaxGaps.
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
	OverHeld  int64  `json:"over_by_holders"`
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
	OverHeld Keys   `json:"over_quota_by_holders"`
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
