package limiter

import (
	"strings"
	"testing"
)

// TestIdempotencyKey: a charge that is sent again with its key is made once. What differs in the caller, the key, the place, the verb or
// the descriptor is another one.
func TestIdempotencyKey(t *testing.T) {
	play(t, "domain: shop\ndescriptors:\n  - {key: user, value: \"a*\", share_threshold: true, limits: [100/1h]}\n", `
		key k: user=ann charge => allowed 99/100
		key k: user=ann charge => allowed 99/100
		user=ann charge => allowed 98/100
		key k2: user=ann charge => allowed 97/100
		key web k: user=ann charge => allowed 96/100
		key web k: user=ann charge => allowed 96/100
		key we bk: user=ann charge => allowed 95/100
		# the second place
		key k: user=ann charge | user=ann charge => allowed 95/100 | allowed 94/100
		key k: user=ann charge | user=ann charge => allowed 94/100 | allowed 94/100
		# another descriptor of the same counter
		key k: user=anton charge => allowed 93/100
		key k: user=ann refund => allowed 94/100
		key k: user=ann refund => allowed 94/100
		after 10m =>
		key k: user=ann charge => allowed 93/100
	`)
}

// TestIdempotencyKeyIsInvalid: nothing is decided under a key that is none, and none stands beside verbs that it is not for.
func TestIdempotencyKeyIsInvalid(t *testing.T) {
	s := newScript(t, testRules)
	for _, c := range []struct{ key, checks, want string }{
		{strings.Repeat("k", 129), "user=ann charge", "visible ASCII"},
		{"a\x00b", "user=ann charge", "visible ASCII"},
		{"ä", "user=ann charge", "visible ASCII"},
		{"k", "user=ann charge | user=ann", "is for charges and refunds"},
		{"k", "user=ann read", "is for charges and refunds"},
		{"k", "user=ann reset", "is for charges and refunds"},
	} {
		b := s.batch(c.checks)
		b.IdempotencyKey = c.key
		if err := s.Check(t.Context(), b); told(err, "") != "invalid idempotency_key" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.key, err, c.want)
		}
	}
	if n := s.node.Asked.Load(); n != 0 {
		t.Errorf("%d requests were decided", n)
	}
	s.play("key " + strings.Repeat("~", MaxIdempotencyKey) + ": user=ann charge => allowed 2/3")
}
