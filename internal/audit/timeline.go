package audit

import "time"

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
