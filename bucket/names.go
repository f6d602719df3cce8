package bucket

import (
	"fmt"
	"strings"
)

// The names of values in rule files, JSON, logs and metrics, by value. Empty
// names have no value.
var (
	verbNames      = []string{Check: "check", Read: "read", Charge: "charge", Refund: "refund", Reset: "reset"}
	algorithmNames = []string{
		TokenBucket: "token_bucket", LeakyBucket: "leaky_bucket", LeakyQueue: "leaky_queue", FixedWindow: "fixed_window",
		SlidingLog: "sliding_log", SlidingCounter: "sliding_counter", SlidingWindow: "sliding_window",
	}
	alignNames  = []string{AlignEpoch: "epoch", AlignCalendar: "calendar", AlignFirstHit: "first_hit"}
	refillNames = []string{RefillContinuous: "continuous", RefillInterval: "interval"}
	unitNames   = []string{Minute: "minute", Hour: "hour", Day: "day", Week: "week", Month: "month", Year: "year"}
)

// String returns v's name, for example "check".
func (v Verb) String() string { return nameOf(verbNames, v) }

// UnmarshalText sets v from its name.
func (v *Verb) UnmarshalText(text []byte) error { return fromName(verbNames, text, v) }

// String returns a's name, for example "token_bucket".
func (a Algorithm) String() string { return nameOf(algorithmNames, a) }

// UnmarshalText sets a from its name.
func (a *Algorithm) UnmarshalText(text []byte) error { return fromName(algorithmNames, text, a) }

// String returns a's name, for example "first_hit".
func (a Align) String() string { return nameOf(alignNames, a) }

// UnmarshalText sets a from its name.
func (a *Align) UnmarshalText(text []byte) error { return fromName(alignNames, text, a) }

// String returns r's name, for example "continuous".
func (r Refill) String() string { return nameOf(refillNames, r) }

// UnmarshalText sets r from its name.
func (r *Refill) UnmarshalText(text []byte) error { return fromName(refillNames, text, r) }

// String returns u's name, for example "day".
func (u Unit) String() string { return nameOf(unitNames, u) }

// UnmarshalText sets u from its name.
func (u *Unit) UnmarshalText(text []byte) error { return fromName(unitNames, text, u) }

func nameOf[T ~uint8](names []string, v T) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("unknown (%d)", v)
}

// fromName sets v to the value called text. The error lists the names there are.
func fromName[T ~uint8](names []string, text []byte, v *T) error {
	var known []string
	for i, name := range names {
		if name == "" {
			continue
		}
		if name == string(text) {
			*v = T(i)
			return nil
		}
		known = append(known, name)
	}
	return fmt.Errorf("%q is none of %s", text, strings.Join(known, ", "))
}
