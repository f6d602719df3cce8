// Package apitest is what the tests of every API need: a Service with rules
// on a Decider of one table. It starts no goroutine.
package apitest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/onenode"
)

// Rules are the least that an API is tested with: three a minute for a user, and
// one that only watches.
const Rules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
`

// Start is the Unix time in ns at which nodes begin, on a minute of the epoch.
const Start = 1_700_006_400_000_000_000

// NewNode returns a Decider whose clock shows Start.
func NewNode(t testing.TB) *onenode.Node {
	t.Helper()
	n, err := onenode.New(Start)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// NewLimiter returns a Service on d with one file of rules. The cluster that it
// shows is self alone.
func NewLimiter(t testing.TB, d check.Decider, file string, self member.Member, change ...func(*limiter.Config)) *limiter.Limiter {
	t.Helper()
	h, err := limiter.NewHasher([]byte(strings.Repeat("s", limiter.MinSecret)))
	if err != nil {
		t.Fatal(err)
	}
	c := limiter.Config{
		Decider: d,
		Hasher:  h,
		Cluster: newCluster(self),
	}
	for _, f := range change {
		f(&c)
	}
	s, err := limiter.New(c)
	if err != nil {
		t.Fatal(err)
	}
	set, err := rules.Parse([]rules.File{{Name: "test.yaml", Data: []byte(file)}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetRules(set)
	return s
}

// Hear gives headers the names that Go's clients know them by: they go out in the spelling of the docs.
func Hear(h http.Header) {
	for name, values := range h {
		if heard := http.CanonicalHeaderKey(name); heard != name {
			delete(h, name)
			h[heard] = values
		}
	}
}
