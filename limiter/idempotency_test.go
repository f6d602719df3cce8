package limiter

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestIdempotencyKey: a charge that is sent again with its key is made once. What differs in the caller, the key, the place, the verb or
// the descriptor is another one.
func TestIdempotencyKey(t *testing.T) {
	node := newNode(t)
	s := newService(t, node)
	s.SetRules(parse(t, "domain: shop\ndescriptors:\n  - {key: user, value: \"a*\", share_threshold: true, limits: [100/1h]}\n"))
	ann := all(entry("user", "ann"), verb(bucket.Charge))
	for i, c := range []struct {
		caller, key string
		asks        []ask
		left        int64
	}{
		{"", "k", []ask{ann}, 99},
		{"", "k", []ask{ann}, 99},
		{"", "", []ask{ann}, 98},
		{"", "k2", []ask{ann}, 97},
		{"web", "k", []ask{ann}, 96},
		{"web", "k", []ask{ann}, 96},
		{"we", "bk", []ask{ann}, 95},
		{"", "k", []ask{ann, ann}, 94}, // the second place
		{"", "k", []ask{ann, ann}, 94},
		{"", "k", []ask{all(entry("user", "anton"), verb(bucket.Charge))}, 93}, // another descriptor of the same counter
		{"", "k", []ask{all(entry("user", "ann"), verb(bucket.Refund))}, 94},
		{"", "k", []ask{all(entry("user", "ann"), verb(bucket.Refund))}, 94},
	} {
		b := batch(t, c.asks...)
		b.Caller, b.IdempotencyKey = c.caller, c.key
		if err := s.Check(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if r := &b.Results[len(b.Results)-1]; r.Err != nil || !r.Allowed || r.Remaining != c.left {
			t.Errorf("step %d: %+v, want %d left", i, r, c.left)
		}
	}
	node.Now.Add(int64(bucket.OnceFor))
	b := batch(t, ann)
	b.IdempotencyKey = "k"
	if err := s.Check(t.Context(), b); err != nil || b.Results[0].Remaining != 93 {
		t.Errorf("after %v: %v %+v, want 93 left", time.Duration(bucket.OnceFor), err, b.Results)
	}
}

// TestIdempotencyKeyIsInvalid: nothing is decided under a key that is none, and none stands beside verbs that it is not for.
func TestIdempotencyKeyIsInvalid(t *testing.T) {
	node := newNode(t)
	s := newService(t, node)
	charge := all(entry("user", "ann"), verb(bucket.Charge))
	for _, c := range []struct {
		key  string
		asks []ask
		want string
	}{
		{strings.Repeat("k", 129), []ask{charge}, "visible ASCII"},
		{"a b", []ask{charge}, "visible ASCII"},
		{"ä", []ask{charge}, "visible ASCII"},
		{"k", []ask{charge, entry("user", "ann")}, "is for charges and refunds"},
		{"k", []ask{all(entry("user", "ann"), verb(bucket.Read))}, "is for charges and refunds"},
		{"k", []ask{all(entry("user", "ann"), verb(bucket.Reset))}, "is for charges and refunds"},
	} {
		b := batch(t, c.asks...)
		b.IdempotencyKey = c.key
		e, ok := errors.AsType[*Error](s.Check(t.Context(), b))
		if !ok || e.Code != Invalid || e.Field != "idempotency_key" || !strings.Contains(e.Message, c.want) {
			t.Errorf("%q: %v, want %s", c.key, e, c.want)
		}
	}
	if n := node.Asked.Load(); n != 0 {
		t.Errorf("%d requests were decided", n)
	}
	b := batch(t, charge)
	b.IdempotencyKey = strings.Repeat("~", MaxIdempotencyKey)
	if err := s.Check(t.Context(), b); err != nil || b.Results[0].Remaining != 2 {
		t.Errorf("%v %+v", err, b.Results)
	}
}
