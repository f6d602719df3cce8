package httpapi

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/access"
)

// decide returns the handler of POST /v1/ and the name of a verb.
func (d *api) decide(verb bucket.Verb) func(http.ResponseWriter, *http.Request) error {
	fields, options := checkFields[:4], []string(nil)
	switch verb {
	case bucket.Check:
		fields, options = checkFields, callOptions
	case bucket.Reset:
		fields = checkFields[:3]
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		b := limiter.NewBatch()
		defer b.Release()
		pass, deny, err := d.begin(r, b, verb == bucket.Charge || verb == bucket.Refund)
		if err != nil {
			return err
		}
		many := false
		if err := d.withBody(w, r, func(body []byte) (err error) {
			many, err = readCall(body, b, fields, options, atomicInto(b))
			return err
		}); err != nil {
			return err
		}
		if verb != bucket.Check {
			for i := range b.Checks {
				b.Checks[i].Verb = verb
			}
		}
		if rejected := pass.Restrict(b); rejected != nil {
			return rejected
		}
		if err := d.Limiter.Check(r.Context(), b); err != nil {
			return err
		}
		if many {
			answerMany(w, b, deny)
		} else {
			answerOne(w, b, deny)
		}
		return nil
	}
}

// begin authenticates a request with checks, and reads its query and its headers into b. deny is as of readQuery, keyed as of
// readKey.
func (d *api) begin(r *http.Request, b *limiter.Batch, keyed bool) (pass access.Pass, deny bool, err error) {
	b.API, b.Traceparent = limiter.HTTPAPI, r.Header.Get(transport.HeaderTraceparent)
	pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
	if rejected != nil {
		return pass, false, rejected
	}
	if deny, err = readQuery(r.URL.RawQuery); err != nil {
		return pass, false, err
	}
	return pass, deny, readKey(r.Header, b, keyed)
}

// readQuery reads the query of a request: whether the status is to be 429 if not all is allowed.
func readQuery(query string) (deny bool, err error) {
	switch query {
	case "", "deny=429":
		return query != "", nil
	}
	return false, &limiter.Error{Code: limiter.Invalid, Message: "unknown query " + clip(query) + "; want deny=429, or none"}
}

const headerKey = "Idempotency-Key"

// readKey reads the idempotency key of a request. keyed: it may have one.
func readKey(h http.Header, b *limiter.Batch, keyed bool) error {
	switch values := h[headerKey]; {
	case len(values) == 0:
	case !keyed:
		return &limiter.Error{Code: limiter.Invalid, Field: headerKey, Message: "is for /v1/charge, /v1/refund and /v1/reserve; leave it out here"}
	case len(values) > 1 || !limiter.ValidKey(values[0]):
		return &limiter.Error{Code: limiter.Invalid, Field: headerKey, Message: "want one value, of 1 to 128 bytes of visible ASCII"}
	default:
		b.IdempotencyKey = values[0]
	}
	return nil
}

// The fields of each object, as docs/use/api.md lists them.
var (
	checkFields = []string{"domain", "descriptor", "limits", "cost", "verb"} // see decide
	callOptions = []string{"all_or_nothing"}
	entryFields = []string{"key", "value"}
	limitFields = []string{
		"algorithm", "count", "period", "unlimited", "burst", "weight", "refill", "align", "unit", "timezone",
		"min_interval", "soft", "count_denied", "sub_windows", "log_entries", "block_for",
	}
)

// readCall reads the body of a call into b: the fields of one check, or (many) a list of checks in "checks". fields are
// those of one check, options those of the call, which option reads.
func readCall(body []byte, b *limiter.Batch, fields, options []string, option func(r *reader, name string) error) (many bool, err error) {
	r, err := newReader(body)
	if err != nil {
		return false, err
	}
	var one *limiter.Check // the check that the body itself is
	err = r.object(slices.Concat(fields, []string{"checks"}, options), func(name string) (err error) {
		switch {
		case name == "checks" && one != nil:
			return r.fail("cannot stand beside the fields of one check")
		case name == "checks":
			many = true
			return readChecks(r, b, fields)
		case slices.Contains(options, name):
			return option(r, name)
		case many:
			return r.fail("cannot stand beside checks")
		case one == nil:
			one = b.Add()
		}
		return readCheckField(r, one, name)
	})
	if err != nil {
		return false, err
	}
	if !many && one == nil {
		b.Add() // an empty object: the limiter says what is missing
	}
	return many, r.end()
}

// atomicInto reads callOptions into b.
func atomicInto(b *limiter.Batch) func(r *reader, name string) error {
	return func(r *reader, _ string) (err error) {
		b.AllOrNothing, err = r.boolean()
		return err
	}
}

func readChecks(r *reader, b *limiter.Batch, fields []string) error {
	return r.array(func(i int) error {
		if e := limiter.CountError(i + 1); e != nil {
			return e
		}
		c := b.Add()
		return r.object(fields, func(name string) error { return readCheckField(r, c, name) })
	})
}

func readCheckField(r *reader, c *limiter.Check, name string) (err error) {
	switch name {
	case "domain":
		c.Domain, err = r.text()
	case "descriptor":
		err = r.array(func(int) error { return readEntry(r, c) })
	case "cost":
		c.Cost, err = r.integer(64)
	case "verb":
		c.Verb, err = readWord[bucket.Verb](r, c, func() string { return "verb" })
		if c.Verb == bucket.Reset && c.Err == nil {
			c.Err = &limiter.Error{Code: limiter.Invalid, Field: "verb", Message: "reset is no verb of a check; see /v1/reset"}
		}
	case "limits":
		err = r.array(func(i int) error { return readLimit(r, c, i) })
	}
	return err
}

// readEntry reads an object, or a string: "user=ann".
func readEntry(r *reader, c *limiter.Check) error {
	var e rules.Entry
	t, err := r.token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case string:
		var ok bool
		if e.Key, e.Value, ok = strings.Cut(t, "="); !ok {
			return r.fail("%q has no =; want \"key=value\", or an object of key and value", clip(t))
		}
	case json.Delim:
		if t != '{' {
			return r.fail("want an object, or a string \"key=value\", found %s", kind(t))
		}
		err = r.fields(entryFields, func(name string) (err error) {
			if name == "key" {
				e.Key, err = r.text()
			} else {
				e.Value, err = r.text()
			}
			return err
		})
	default:
		return r.fail("want an object, or a string \"key=value\", found %s", kind(t))
	}
	// One too many is enough for it to be rejected.
	if len(c.Descriptor) <= limiter.MaxEntries {
		c.Descriptor = append(c.Descriptor, e)
	}
	return err
}

func readLimit(r *reader, c *limiter.Check, i int) error {
	l := bucket.Limit{Algorithm: bucket.FixedWindow}
	err := r.object(limitFields, func(name string) error { return readLimitField(r, c, i, &l, name) })
	if len(c.Limits) <= bucket.MaxLimits {
		c.Limits = append(c.Limits, l)
	}
	return err
}

func readLimitField(r *reader, c *limiter.Check, i int, l *bucket.Limit, name string) (err error) {
	field := func() string { return fmt.Sprintf("limits[%d].%s", i, name) }
	switch name {
	case "algorithm":
		l.Algorithm, err = readWord[bucket.Algorithm](r, c, field)
	case "count":
		l.Count, err = r.integer(64)
	case "period":
		l.Period, err = r.seconds()
	case "unlimited":
		l.Unlimited, err = r.boolean()
	case "burst":
		l.Burst, err = r.integer(64)
	case "weight":
		l.Cost, err = r.integer(64)
	case "refill":
		l.Refill, err = readWord[bucket.Refill](r, c, field)
	case "align":
		l.Align, err = readWord[bucket.Align](r, c, field)
	case "unit":
		l.Unit, err = readWord[bucket.Unit](r, c, field)
	case "timezone":
		l.Zone, err = r.text()
	case "min_interval":
		l.MinInterval, err = r.seconds()
	case "block_for":
		l.BlockFor, err = r.seconds()
	case "soft":
		l.Soft, err = small(r)
	case "count_denied":
		l.CountDenied, err = r.boolean()
	case "sub_windows":
		l.SubWindows, err = small(r)
	case "log_entries":
		l.LogEntries, err = small(r)
	}
	return err
}

func small(r *reader) (int32, error) {
	n, err := r.integer(32)
	return int32(n), err
}

// readWord reads a value by its name in rule files. An unknown name is an Err of c alone, so that the other checks are
// answered. field returns the path within the check.
func readWord[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](r *reader, c *limiter.Check, field func() string) (v T, err error) {
	word, err := r.text()
	if err != nil {
		return v, err
	}
	// Clipped, because the error repeats it; no name is as long as that.
	if err := P(&v).UnmarshalText([]byte(clip(word))); err != nil && c.Err == nil {
		c.Err = &limiter.Error{Code: limiter.Invalid, Field: field(), Message: err.Error()}
	}
	return v, nil
}
