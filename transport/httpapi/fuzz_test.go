package httpapi

import (
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/sluicecluster/sluice/limiter"
)

// FuzzReadCall holds the reader to what any body must come to: an error that
// says where, or checks of a text that encoding/json takes for JSON too.
func FuzzReadCall(f *testing.F) {
	for _, c := range badBodies {
		if len(c.body) < 1000 {
			f.Add([]byte(c.body))
		}
	}
	f.Add([]byte(user("x", `,"cost":2,"verb":"read","limits":[{"algorithm":"sliding_log","count":1,"period":0.5}]`)))
	f.Add([]byte(`{"checks":[` + user("x", "") + `,{}],"all_or_nothing":true}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := limiter.NewBatch()
		defer b.Release()
		many, err := readCall(body, b, checkFields, callOptions, atomicInto(b))
		if err != nil {
			if e, ok := errors.AsType[*bodyError](err); ok {
				if e.Reason == "" || e.Offset < 0 || e.Offset > int64(len(body)) {
					t.Errorf("%q: %#v", body, e)
				}
			} else if _, ok := errors.AsType[*limiter.Error](err); !ok {
				t.Errorf("%q: %#v", body, err)
			}
			return
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Errorf("%q is accepted", body)
		}
		var loose struct {
			Domain string
			Checks []struct {
				Domain     string
				Descriptor []struct{ Key, Value string }
			}
		}
		if err := json.Unmarshal(body, &loose); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if !many {
			if len(b.Checks) != 1 || b.Checks[0].Domain != loose.Domain {
				t.Errorf("%q: %+v", body, b.Checks)
			}
			return
		}
		if len(b.Checks) != len(loose.Checks) {
			t.Fatalf("%q: %d checks, want %d", body, len(b.Checks), len(loose.Checks))
		}
		for i, want := range loose.Checks {
			c := b.Checks[i]
			if c.Domain != want.Domain || len(c.Descriptor) != min(len(want.Descriptor), limiter.MaxEntries+1) {
				t.Fatalf("%q: %+v", body, c)
			}
			for j, e := range c.Descriptor {
				if e.Key != want.Descriptor[j].Key || e.Value != want.Descriptor[j].Value {
					t.Errorf("%q: entry %+v", body, e)
				}
			}
		}
	})
}
