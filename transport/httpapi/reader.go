package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// bodyError is why a body is invalid.
type bodyError struct {
	// Field is where, for example "checks[3].cost"; empty at the top.
	Field string
	// Offset is how many bytes of the body had been read.
	Offset int64
	Reason string
}

func (e *bodyError) Error() string {
	at := "at byte " + strconv.FormatInt(e.Offset, 10)
	if e.Field != "" {
		at = e.Field + " (" + at + ")"
	}
	return at + ": " + e.Reason
}

// reader reads one JSON text strictly: no unknown or repeated fields, no null, no wrong types, nothing after the end. Its
// errors name the field, which those of encoding/json do not.
type reader struct {
	dec *json.Decoder
	// at is the way to the value being read; a step with an empty key is an index.
	at []step
}

type step struct {
	key   string
	index int
}

// newReader returns a reader of body, which must not change while it reads.
func newReader(body []byte) (*reader, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, &bodyError{Reason: "empty body; want a JSON object"}
	}
	// encoding/json replaces bad bytes, which would make different keys equal.
	for i := 0; i < len(body); {
		c, n := utf8.DecodeRune(body[i:])
		if c == utf8.RuneError && n == 1 {
			return nil, &bodyError{Offset: int64(i), Reason: "not UTF-8"}
		}
		i += n
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	return &reader{dec: dec}, nil
}

// fail returns an error at the value being read.
func (r *reader) fail(format string, args ...any) error {
	return &bodyError{Field: r.field(), Offset: r.dec.InputOffset(), Reason: fmt.Sprintf(format, args...)}
}

// field spells where the reader is.
func (r *reader) field() string {
	var s strings.Builder
	for _, p := range r.at {
		switch {
		case p.key == "":
			fmt.Fprintf(&s, "[%d]", p.index)
		case s.Len() > 0:
			s.WriteString("." + p.key)
		default:
			s.WriteString(p.key)
		}
	}
	return s.String()
}

func (r *reader) token() (json.Token, error) {
	t, err := r.dec.Token()
	if err == nil {
		return t, nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, r.fail("malformed JSON: it ends too early")
	}
	return nil, r.fail("malformed JSON: %v", err)
}

// end checks that nothing follows the value that was read.
func (r *reader) end() error {
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return r.fail("more after the end of the JSON object")
	}
	return nil
}

// object reads an object of these fields; each reads the value of one.
func (r *reader) object(fields []string, each func(name string) error) error {
	if err := r.open('{', "an object"); err != nil {
		return err
	}
	return r.fields(fields, each)
}

// fields reads the rest of an object that is open.
func (r *reader) fields(fields []string, each func(name string) error) error {
	var seen uint64 // a bit per field
	for r.dec.More() {
		t, err := r.token()
		if err != nil {
			return err
		}
		name, _ := t.(string) // in an object the decoder lets only strings pass here
		i := slices.Index(fields, name)
		if i < 0 {
			return r.fail("unknown field %q; want one of %s", clip(name), strings.Join(fields, ", "))
		}
		if seen&(1<<i) != 0 {
			return r.fail("field %q is there twice", name)
		}
		seen |= 1 << i
		r.at = append(r.at, step{key: name})
		if err := each(name); err != nil {
			return err
		}
		r.at = r.at[:len(r.at)-1]
	}
	_, err := r.token() // the closing brace
	return err
}

// array reads an array; each reads element i.
func (r *reader) array(each func(i int) error) error {
	if err := r.open('[', "an array"); err != nil {
		return err
	}
	for i := 0; r.dec.More(); i++ {
		r.at = append(r.at, step{index: i})
		if err := each(i); err != nil {
			return err
		}
		r.at = r.at[:len(r.at)-1]
	}
	_, err := r.token()
	return err
}

func (r *reader) open(d json.Delim, want string) error {
	t, err := r.token()
	if err != nil {
		return err
	}
	if t != d {
		return r.fail("want %s, found %s", want, kind(t))
	}
	return nil
}

// scalar reads a value of type T, which errors call want.
func scalar[T any](r *reader, want string) (v T, err error) {
	t, err := r.token()
	if err != nil {
		return v, err
	}
	v, ok := t.(T)
	if !ok {
		return v, r.fail("want %s, found %s", want, kind(t))
	}
	return v, nil
}

func (r *reader) text() (string, error)  { return scalar[string](r, "a string") }
func (r *reader) boolean() (bool, error) { return scalar[bool](r, "true or false") }

func (r *reader) number() (string, error) {
	n, err := scalar[json.Number](r, "a number")
	return n.String(), err
}

// integer reads a whole number of at most bits bits.
func (r *reader) integer(bits int) (int64, error) {
	n, err := r.number()
	if err != nil {
		return 0, err
	}
	i, err := strconv.ParseInt(n, 10, bits)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, r.fail("%s is out of range; want at most %d bits", clip(n), bits)
	case err != nil:
		return 0, r.fail("want a whole number, found %s", clip(n))
	}
	return i, nil
}

// seconds reads a duration as a number of seconds, to the nanosecond.
func (r *reader) seconds() (time.Duration, error) {
	n, err := scalar[json.Number](r, "a number of seconds, for example 60")
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(string(n), 64)
	ns := math.Round(f * 1e9)
	if err != nil || math.Abs(ns) >= math.MaxInt64 {
		return 0, r.fail("%s seconds are out of range", clip(string(n)))
	}
	return time.Duration(ns), nil
}

// kind names the value that a token is or begins.
func kind(t json.Token) string {
	switch t := t.(type) {
	case json.Delim:
		switch t {
		case '{':
			return "an object"
		case '[':
			return "an array"
		}
		return "the end of an array or object"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "a boolean"
	}
	return "null"
}

// clip shortens a text of a client for a message.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
