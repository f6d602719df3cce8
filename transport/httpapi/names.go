package httpapi

import (
	"encoding"

	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/transport"
)

// sources are the words for who decided, by value.
var sources = [...]string{
	check.Held: "held", check.Forwarded: "forwarded",
	check.Share: "share", check.Closed: "closed", check.Open: "open",
	check.Unruled: "unruled", check.Leased: "lease", check.Eventual: "eventual",
}

// sourceOf returns the word for s, "" if there is no decision.
func sourceOf(s check.Source) string {
	if int(s) < len(sources) {
		return sources[s]
	}
	return "unknown"
}

// readWord reads a value by its name, which is that of rule files. A word that is
// no such name is the fault of c alone, so that the other checks are answered.
// field spells where, seen from the check.
func readWord[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](r *reader, c *transport.Check, field func() string) (v T, err error) {
	word, err := r.text()
	if err != nil {
		return v, err
	}
	// Clipped, because the error repeats it; no name is as long as that.
	if err := P(&v).UnmarshalText([]byte(clip(word))); err != nil && c.Fault == nil {
		c.Fault = &transport.Error{Code: transport.Invalid, Field: field(), Message: err.Error()}
	}
	return v, nil
}
