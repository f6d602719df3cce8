package httpapi

import (
	"encoding"

	"github.com/sluice-project/sluice/limiter"
)

// readWord reads a value by its name, which is that of rule files. A word that is
// no such name is the fault of c alone, so that the other checks are answered.
// field spells where, seen from the check.
func readWord[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](r *reader, c *limiter.Check, field func() string) (v T, err error) {
	word, err := r.text()
	if err != nil {
		return v, err
	}
	// Clipped, because the error repeats it; no name is as long as that.
	if err := P(&v).UnmarshalText([]byte(clip(word))); err != nil && c.Fault == nil {
		c.Fault = &limiter.Error{Code: limiter.Invalid, Field: field(), Message: err.Error()}
	}
	return v, nil
}
