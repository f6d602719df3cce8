package httpapi

import (
	"fmt"
	"strings"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/transport"
)

// name is a word of the JSON form and what it stands for. The words for limits
// are those of rule files.
type name[T any] struct {
	word  string
	value T
}

var verbs = []name[bucket.Verb]{
	{"check", bucket.Check}, {"read", bucket.Read}, {"charge", bucket.Charge}, {"refund", bucket.Refund},
}

var algorithms = []name[bucket.Algorithm]{
	{"token_bucket", bucket.TokenBucket}, {"leaky_bucket", bucket.LeakyBucket}, {"leaky_queue", bucket.LeakyQueue},
	{"fixed_window", bucket.FixedWindow}, {"sliding_log", bucket.SlidingLog},
	{"sliding_counter", bucket.SlidingCounter}, {"sliding_window", bucket.SlidingWindow},
}

var refills = []name[bucket.Refill]{{"continuous", bucket.RefillContinuous}, {"interval", bucket.RefillInterval}}

var aligns = []name[bucket.Align]{
	{"epoch", bucket.AlignEpoch}, {"calendar", bucket.AlignCalendar}, {"first_hit", bucket.AlignFirstHit},
}

var units = []name[bucket.Unit]{
	{"minute", bucket.Minute}, {"hour", bucket.Hour}, {"day", bucket.Day},
	{"week", bucket.Week}, {"month", bucket.Month}, {"year", bucket.Year},
}

var sources = []name[check.Source]{
	{"held", check.Held}, {"forwarded", check.Forwarded}, {"share", check.Share},
	{"closed", check.Closed}, {"open", check.Open}, {"unruled", check.Unruled},
}

// wordOf returns the word for v.
func wordOf[T comparable](names []name[T], v T) string {
	for _, n := range names {
		if n.value == v {
			return n.word
		}
	}
	return "unknown"
}

// readName reads one of the words. Another word is the fault of c alone, so that
// the other checks are answered. field spells where, seen from the check.
func readName[T any](r *reader, c *transport.Check, field func() string, names []name[T]) (v T, err error) {
	word, err := r.text()
	if err != nil {
		return v, err
	}
	for _, n := range names {
		if n.word == word {
			return n.value, nil
		}
	}
	if c.Fault == nil {
		words := make([]string, len(names))
		for i, n := range names {
			words[i] = n.word
		}
		c.Fault = &transport.Error{
			Code:    transport.Invalid,
			Field:   field(),
			Message: fmt.Sprintf("unknown word %q; want %s", clip(word), strings.Join(words, ", ")),
		}
	}
	return v, nil
}
