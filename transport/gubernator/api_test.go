package gubernator

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/test/onenode"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open returns an API to d, whose time of day is n's, with changes.
func open(t testing.TB, n *onenode.Node, d check.Decider, change ...func(*Config)) *API {
	t.Helper()
	self := member.Member{Name: "n1", Boot: "b1", State: member.Serving, GRPC: "127.0.0.1:7460"}
	c := Config{
		Limiter: apitest.NewLimiter(t, d, apitest.Rules, self),
		Now:     func() time.Time { return time.Unix(0, n.Now.Load()) },
	}
	for _, f := range change {
		f(&c)
	}
	api, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// openNode opens an API to a node of its own.
func openNode(t testing.TB) (*API, *onenode.Node) {
	n := apitest.NewNode(t)
	return open(t, n, n), n
}

// hit is a request of one hit on one key, 10 an hour, to be changed.
func hit(change func(*gubernatorv1.RateLimitReq)) *gubernatorv1.RateLimitReq {
	q := &gubernatorv1.RateLimitReq{Name: "requests", UniqueKey: "account:1", Hits: 1, Limit: 10, Duration: 3_600_000}
	if change != nil {
		change(q)
	}
	return q
}

// get asks d and returns the answers.
func get(t testing.TB, d *API, requests ...*gubernatorv1.RateLimitReq) []*gubernatorv1.RateLimitResp {
	t.Helper()
	res, err := d.GetRateLimits(t.Context(), &gubernatorv1.GetRateLimitsReq{Requests: requests})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.GetResponses()) != len(requests) {
		t.Fatalf("%d answers to %d requests", len(res.GetResponses()), len(requests))
	}
	return res.GetResponses()
}

func TestConfigValidate(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Limiter") {
		t.Errorf("error %v", err)
	}
}

// TestOneCallManyItems: what is wrong with an item stands in its answer, and the others are decided.
func TestOneCallManyItems(t *testing.T) {
	d, n := openNode(t)
	bad := []struct {
		name   string
		change func(*gubernatorv1.RateLimitReq)
		want   string
	}{
		{"no key", func(q *gubernatorv1.RateLimitReq) { q.UniqueKey = "" }, "field 'unique_key' cannot be empty"},
		{"no name", func(q *gubernatorv1.RateLimitReq) { q.Name = "" }, "field 'namespace' cannot be empty"},
		{"neither", func(q *gubernatorv1.RateLimitReq) { q.Name, q.UniqueKey = "", "" }, "field 'unique_key' cannot be empty"},
		{"a long name", func(q *gubernatorv1.RateLimitReq) { q.Name = strings.Repeat("n", maxName+1) },
			"field 'name' has 1014 bytes; want at most 1013"},
		{"algorithm 2", func(q *gubernatorv1.RateLimitReq) { q.Algorithm = 2 },
			"field 'algorithm' is unknown: 2; want 0 (TOKEN_BUCKET) or 1 (LEAKY_BUCKET)"},
		{"algorithm -1", func(q *gubernatorv1.RateLimitReq) { q.Algorithm = -1 },
			"field 'algorithm' is unknown: -1; want 0 (TOKEN_BUCKET) or 1 (LEAKY_BUCKET)"},
		{"behavior 64", func(q *gubernatorv1.RateLimitReq) { q.Behavior = 65 },
			"field 'behavior' has unknown bits: 65; want a sum of 1, 2, 4, 8, 16 and 32"},
		{"behavior -1", func(q *gubernatorv1.RateLimitReq) { q.Behavior = -1 },
			"field 'behavior' has unknown bits: -1; want a sum of 1, 2, 4, 8, 16 and 32"},
		{"a seventh unit", func(q *gubernatorv1.RateLimitReq) { q.Behavior, q.Duration = 4, 6 },
			"field 'duration' is no unit of the calendar: 6; with DURATION_IS_GREGORIAN want 0 (minute), 1 (hour), 2 (day), 3 (week), 4 (month) or 5 (year)"},
		{"unit -1", func(q *gubernatorv1.RateLimitReq) { q.Behavior, q.Duration, q.Algorithm = 4, -1, 1 },
			"field 'duration' is no unit of the calendar: -1; with DURATION_IS_GREGORIAN want 0 (minute), 1 (hour), 2 (day), 3 (week), 4 (month) or 5 (year)"},
	}
	var call []*gubernatorv1.RateLimitReq
	for _, c := range bad {
		call = append(call, hit(c.change), hit(nil))
	}
	res := get(t, d, call...)
	for i, c := range bad {
		want := gubernatorv1.RateLimitResp{Error: c.want}
		if got := res[2*i]; got.String() != want.String() {
			t.Errorf("%s: %v, want error %q and nothing else", c.name, got, c.want)
		}
		if got, left := res[2*i+1], int64(9-i); got.GetError() != "" || got.GetRemaining() != left || got.GetStatus() != gubernatorv1.Status_UNDER_LIMIT {
			t.Errorf("the good item after %s: %v, want %d left", c.name, got, left)
		}
	}
	if got := n.Asked.Load(); got != int64(len(bad)) {
		t.Errorf("%d checks reached the node, want the %d good ones", got, len(bad))
	}
	if res := get(t, d, hit(bad[0].change)); res[0].GetError() != bad[0].want {
		t.Errorf("a call of bad items only: %v", res)
	}
	if got := get(t, d); len(got) != 0 {
		t.Errorf("an empty call: %v", got)
	}
}

func TestTooManyItems(t *testing.T) {
	d, n := openNode(t)
	call := make([]*gubernatorv1.RateLimitReq, maxRequests+1)
	for i := range call {
		call[i] = hit(func(q *gubernatorv1.RateLimitReq) { q.UniqueKey = strconv.Itoa(i) })
	}
	res, err := d.GetRateLimits(t.Context(), &gubernatorv1.GetRateLimitsReq{Requests: call})
	if status.Code(err) != codes.OutOfRange || !strings.Contains(err.Error(), "requests: there are 1001; want at most 1000") {
		t.Errorf("1001 items: %v, %v", res, err)
	}
	if n.Asked.Load() != 0 {
		t.Error("1001 items: some were decided")
	}
	for i, r := range get(t, d, call[1:]...) {
		if r.GetRemaining() != 9 {
			t.Fatalf("1000 items: number %d is %v", i, r)
		}
	}
}

// TestNames: name and key together are the counter, and nothing else is.
func TestNames(t *testing.T) {
	d, _ := openNode(t)
	key := func(name, key string) *gubernatorv1.RateLimitReq {
		return hit(func(q *gubernatorv1.RateLimitReq) { q.Name, q.UniqueKey = name, key })
	}
	long := strings.Repeat("k", 1025)
	for i, c := range []struct {
		q    *gubernatorv1.RateLimitReq
		left int64
	}{
		{key("a", "b"), 9}, {key("a", "c"), 9}, {key("a_b", "c"), 9}, {key("a", "b_c"), 9}, {key("a", "b"), 8},
		{key(strings.Repeat("n", maxName), strings.Repeat("k", 1024)), 9},
		{key("a", long), 9}, {key("a", long+"k"), 9}, {key("a", long), 8},
		{key("a", "leaky_bucket"), 9}, {key("a", "\x00é"), 9},
		{hit(func(q *gubernatorv1.RateLimitReq) {
			q.Name, q.UniqueKey, q.Metadata, q.CreatedAt = "a", "b", map[string]string{"owner": "me"}, new(int64(1))
		}), 7},
	} {
		if r := get(t, d, c.q)[0]; r.GetError() != "" || r.GetRemaining() != c.left {
			t.Errorf("row %d, %v: %v, want %d left", i, c.q, r, c.left)
		}
	}
}

// deciderFunc is a Decider.
type deciderFunc func(ctx context.Context, b *check.Batch)

func (f deciderFunc) Decide(ctx context.Context, b *check.Batch) { f(ctx, b) }

// TestErrorsOfTheNode stand in the items that they are about.
func TestErrorsOfTheNode(t *testing.T) {
	n := apitest.NewNode(t)
	for _, c := range []struct {
		err  error
		want string
	}{
		{check.ErrNoOwner, "no node that may decide this key answered in time"},
		{check.ErrOverloaded, "a queue to the deciding node is full"},
		{fmt.Errorf("something else"), "something else"},
	} {
		all := false
		d := open(t, n, deciderFunc(func(ctx context.Context, b *check.Batch) {
			n.Decide(ctx, b)
			for i := range b.Answers {
				if i == 0 || all {
					b.Answers[i] = check.Answer{Err: c.err}
				}
			}
		}))
		res := get(t, d, hit(nil), hit(nil))
		if !strings.Contains(res[0].GetError(), c.want) || res[1].GetError() != "" {
			t.Errorf("%v: %v", c.err, res)
		}
		all = true
		for _, r := range get(t, d, hit(nil), hit(nil)) {
			if !strings.Contains(r.GetError(), c.want) || r.GetLimit() != 0 {
				t.Errorf("%v on all: %v", c.err, r)
			}
		}
	}
}

// TestOwner: the answer names the node that decided, if it is not the one asked, and a
// share of the limit, decided here, is an answer like others.
func TestOwner(t *testing.T) {
	n := apitest.NewNode(t)
	for _, c := range []struct {
		source check.Source
		owner  string
	}{{check.Owned, ""}, {check.Forwarded, "n2"}, {check.Share, ""}} {
		d := open(t, n, deciderFunc(func(ctx context.Context, b *check.Batch) {
			n.Decide(ctx, b)
			b.Answers[0].Source, b.Answers[0].Owner = c.source, "n2"
		}))
		r := get(t, d, hit(nil))[0]
		owner, has := r.GetMetadata()["owner"]
		if owner != c.owner || has != (c.owner != "") || r.GetError() != "" {
			t.Errorf("%v: %v, want owner %q", c.source, r, c.owner)
		}
	}
}

// TestLeaving: nothing is taken any more, and nothing is charged.
func TestLeaving(t *testing.T) {
	n := apitest.NewNode(t)
	leaving := false
	d := open(t, n, n, func(c *Config) { c.Leaving = func() bool { return leaving } })
	calls := map[string]func() error{
		"GetRateLimits": func() error {
			_, err := d.GetRateLimits(t.Context(), &gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{hit(nil)}})
			return err
		},
		"HealthCheck": func() error { _, err := d.HealthCheck(t.Context(), nil); return err },
		"LiveCheck":   func() error { _, err := d.LiveCheck(t.Context(), nil); return err },
	}
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s before: %v", name, err)
		}
	}
	leaving = true
	for name, call := range calls {
		if err := call(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s while leaving: %v, want Unavailable", name, err)
		}
	}
	if got := n.Asked.Load(); got != 1 {
		t.Errorf("%d checks decided, want the 1 from before", got)
	}
}

// membersOnly answers Members alone.
type membersOnly struct {
	limiter.Service
	members limiter.Members
}

func (l membersOnly) Members(context.Context) limiter.Members { return l.members }

func TestHealthCheck(t *testing.T) {
	m := limiter.Members{Self: "n2", State: limiter.State{MayDecide: true}, Members: []limiter.Member{
		{Member: member.Member{Name: "n1", GRPC: "10.0.0.1:7460"}},
		{Member: member.Member{Name: "n2", GRPC: "10.0.0.2:7460"}},
		{Member: member.Member{Name: "n3"}, Missing: true},
	}}
	lost := m
	lost.MayDecide, lost.Reason = false, "1 of 3 members answer"
	for _, c := range []struct {
		members limiter.Members
		want    *gubernatorv1.HealthCheckResp
	}{
		{m, &gubernatorv1.HealthCheckResp{Status: "healthy"}},
		{lost, &gubernatorv1.HealthCheckResp{Status: "unhealthy", Message: "this node has no quorum: 1 of 3 members answer"}},
	} {
		c.want.PeerCount, c.want.AdvertiseAddress = 2, "10.0.0.2:7460"
		c.want.LocalPeers = []*gubernatorv1.PeerHealthResp{{GrpcAddress: "10.0.0.1:7460"}, {GrpcAddress: "10.0.0.2:7460"}}
		d, err := New(Config{Limiter: membersOnly{members: c.members}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.HealthCheck(t.Context(), &gubernatorv1.HealthCheckReq{})
		if err != nil || got.String() != c.want.String() {
			t.Errorf("%v, %v\nwant %v", got, err, c.want)
		}
	}
}
