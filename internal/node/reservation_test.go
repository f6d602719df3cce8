package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/rules"
)

// The tests of the seventeen traps of reservations, which have burnt other systems, are TestTrapNN in the package that each one
// concerns (go test -run TestTrap06 ./...), and here TestReservations/TrapNN:
//
//	 1  a denial leaves nothing charged                         limiter
//	 2  a deadline is the grant's own                           bucket
//	 3  callers that are gone                                   here
//	 4  charged or released at the deadline, by rule            limiter
//	 5  bounds of units and of open ones; overruns are debts    limiter
//	 6  learned estimates                                       limiter
//	 7  several budgets of several owners, all or none          here
//	 8  windows that end meanwhile                              bucket
//	 9  late settlements                                        bucket, limiter (with 4)
//	10  settled again, elsewhere, after a handoff and a crash   cluster; lost answers: client
//	11  callers that reserve beside callers that check          bucket; exactly: TestReservedExactly
//	12  a limit below what is held                              bucket
//	13  settlements are not held up; reservations never wait    transport/grpcapi
//	14  streams that outlive a TTL                              limiter
//	15  network partitions                                      cluster
//	16  who holds what                                          here
//	17  no call gives back what was not reserved                bucket
//
// What is asked wrongly has an answer, and neither loses nor mints a unit:
//
//	unknown, changed and settled IDs, and those of another cluster   limiter: TestReserveRejects, TestReservationOfAnotherCluster, TestReserveBudgets
//	negative numbers, TTLs out of their bounds                       here: TestReservationsOfOne; limiter: TestReserveRejects; transport/grpcapi
//	the largest numbers                                              limiter: TestReservationOverflow
//	settled above what was reserved                                  limiter: TestTrap05
//	callers that may not use a domain                                transport/grpcapi, httpapi: TestReservationAccess
//	more reservations than a key or the table may have               limiter: TestMillionReservations; bucket: TestReservationsWhenFull
//	one ID for two reservations                                      bucket: TestFreshReservation, TestReserveAttempts
//	another algorithm, or no rule any more, while some are open      limiter: TestReservationsOutliveRules; a lower limit: TestTrap12

// tokenRules are rules of reservations. Their windows do not end while a test runs.
const tokenRules = `domain: llm
descriptors:
  - key: user
    limits: [{algorithm: fixed_window, align: first_hit, count: 100, period: 240h}]
  - key: team
    limits: [{algorithm: fixed_window, align: first_hit, count: 1000, period: 240h}]
  - key: model
    limits: [{algorithm: fixed_window, align: first_hit, count: 100000, period: 240h}]
  - key: tool
    limits: [{algorithm: concurrency, count: 3}]
  - key: job
    limits: [{algorithm: fixed_window, align: first_hit, count: 100, period: 240h}]
    reservation: {on_expiry: release, max_ttl: 1h}
`

// budgets are nodes with tokenRules, and a client of each.
type budgets struct {
	t     *testing.T
	nodes []*running
	by    []*sluice.Client
}

func startBudgets(t *testing.T, count int, change ...func(*Config)) *budgets {
	t.Helper()
	rules := func(c *Config) { writeRule(t, c.Rules, tokenRules) }
	b := &budgets{t: t, nodes: together(t, count, append(change, rules)...)}
	for _, n := range b.nodes {
		c, _ := newClient(t, n.listen.grpc.Addr().String())
		b.by = append(b.by, c)
	}
	return b
}

// keys returns the keys of descriptors such as user=ann.
func (b *budgets) keys(descriptors ...string) (keys []sluice.Key) {
	for _, d := range descriptors {
		k, v, _ := strings.Cut(d, "=")
		keys = append(keys, b.by[0].Key("llm", k, v))
	}
	return keys
}

// reserve asks node i to reserve units of descriptors. A denied one is returned without an ID.
func (b *budgets) reserve(i int, r sluice.ReserveRequest, descriptors ...string) *sluice.Reservation {
	b.t.Helper()
	r.Keys = b.keys(descriptors...)
	x, err := b.by[i].Reserve(b.t.Context(), r)
	if denied, ok := errors.AsType[*sluice.DeniedError](err); ok {
		return &sluice.Reservation{Batch: denied.Batch}
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return x
}

// settle asks node i to settle a reservation.
func (b *budgets) settle(i int, x *sluice.Reservation, actual int64, want sluice.Settlement) {
	b.t.Helper()
	if s, err := b.by[i].Settle(b.t.Context(), x.ID, actual); err != nil || s != want {
		b.t.Errorf("settled %+v, %v; want %+v", s, err, want)
	}
}

// wants compares what is left of a descriptor, by every node.
func (b *budgets) wants(what, descriptor string, left int64) {
	b.t.Helper()
	k, v, _ := strings.Cut(descriptor, "=")
	for i, c := range b.by {
		if d, err := c.Key("llm", k, v).Read(b.t.Context(), 1); err != nil || d.Remaining != left {
			b.t.Errorf("%s, by node %d: %d left of %s, want %d; %v", what, i+1, d.Remaining, descriptor, left, err)
		}
	}
}

// TestReservationsOfOne: what reservations are at one node that need no other.
func TestReservationsOfOne(t *testing.T) {
	t.Parallel()
	b := startBudgets(t, 1, func(s *Config) { s.SettleWindow = 50 * time.Millisecond })
	t.Run("numbers out of their range", func(t *testing.T) { reservationRanges(t, b) })
	t.Run("where no rule matches", func(t *testing.T) { nothingToHold(t, b.by[0]) })
	// A settlement is an error when --settle-window has passed. It charges nothing, and is counted.
	x := b.reserve(0, sluice.ReserveRequest{Units: 10}, "user=late")
	b.settle(0, x, 4, sluice.Settlement{Charged: 4, Returned: 6})
	await(t, "forgotten", func() bool {
		_, err := b.by[0].Settle(t.Context(), x.ID, 9)
		if err != nil && (!errors.Is(err, limit.ErrNotFound) || !strings.Contains(err.Error(), "--settle-window")) {
			t.Fatal(err)
		}
		return err != nil
	})
	b.wants("settled too late", "user=late", 96)
	b.nodes[0].metric(t, `sluice_settlements_total{result="unknown"} 1`)
}

// reservationRanges: a number out of its range is rejected with the name of its field, and changes nothing.
func reservationRanges(t *testing.T, b *budgets) {
	x := b.reserve(0, sluice.ReserveRequest{Units: 40}, "user=ann")
	for _, c := range []struct{ call, fields, field string }{
		{"spend", `"units":0`, "units"}, {"spend", `"units":-1`, "units"}, {"extend", `"more":-1`, "more"}, {"extend", `"ttl":-1`, "ttl"},
		{"extend", `"ttl":0.0009`, "ttl"}, {"extend", `"ttl":86401`, "ttl"}, {"settle", `"actual":-1`, "actual"},
	} {
		var problem struct{ Code, Field string }
		status := b.nodes[0].post(t, "/v1/"+c.call, fmt.Sprintf(`{"reservation":%q,%s}`, x.ID, c.fields), &problem)
		if status != http.StatusBadRequest || problem.Code != "invalid" || problem.Field != c.field {
			t.Errorf("%s with %s: %d %+v", c.call, c.fields, status, problem)
		}
	}
	b.wants("reserved", "user=ann", 60)
}

// nothingToHold: where no rule matches, nothing is reserved, settling says so, and a hold, which would have no effect, is an error.
func nothingToHold(t *testing.T, c *sluice.Client) {
	ctx := t.Context()
	do(t, c.Ready(ctx))
	for _, key := range []sluice.Key{c.Key("llm", "usr", "ann"), c.Key("lm", "user", "ann")} {
		r, err := c.Reserve(ctx, sluice.ReserveRequest{Keys: []sluice.Key{key}, Units: 5})
		if err != nil || !r.Allowed || r.ID != "" || r.Units != 5 {
			t.Fatalf("%+v %v", r, err)
		}
		if s, err := r.Spend(ctx, 9); err != nil || !s.Allowed {
			t.Errorf("%+v %v", s, err)
		}
		if s, err := r.Settle(ctx, 3); err != nil || s != (sluice.Settlement{Unlimited: true}) {
			t.Errorf("%+v %v", s, err)
		}
		if _, err := c.Hold(ctx, key, time.Minute); !errors.Is(err, sluice.ErrRejected) || !strings.Contains(err.Error(), "no limit of domain") {
			t.Error(err)
		}
		x, err := c.Acquire(ctx, sluice.AcquireRequest{Key: key})
		if err != nil || !x.Allowed || x.ID != "" || x.Context().Err() != nil {
			t.Fatalf("%+v %v", x, err)
		}
		x.Release()
		if x.Context().Err() == nil {
			t.Error("the context goes on after Release")
		}
	}
}

// TestSettleWindowOfRules: by default outcomes are remembered for the longest max_ttl of the rules.
func TestSettleWindowOfRules(t *testing.T) {
	set, err := rules.Parse([]rules.File{{Name: "rules.yaml", Data: []byte(tokenRules)}}, rules.Options{})
	do(t, err)
	if got := longestTTL(set); got != time.Hour {
		t.Errorf("%v, want 1h", got)
	}
	if got := longestTTL(nil); got != 10*time.Minute {
		t.Errorf("without rules %v, want 10m", got)
	}
}

// TestReservations: three nodes and their callers.
func TestReservations(t *testing.T) {
	t.Parallel()
	token, digest := testToken(t, 1)
	b := startBudgets(t, 3, func(c *Config) {
		c.Callers = writeFile(t, "callers:\n  - {name: billing, tokens: ["+digest+"], grants: [{domains: [llm], verbs: [check, read, charge]}]}\n"+
			"anonymous: [{domains: [llm], verbs: [check, read]}]\n")
	})
	for i, n := range b.nodes {
		b.by[i], _ = newClient(t, n.listen.grpc.Addr().String(), sluice.WithToken(sluice.Token(token)))
	}
	t.Run("all", func(t *testing.T) {
		for name, f := range map[string]func(*testing.T, *budgets){
			"Trap03": trap03, "Trap07": trap07, "waiting": reserveWaits, "slots with units": acquireWith,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t, &budgets{t, b.nodes, b.by})
			})
		}
	})
	t.Run("Trap16", func(t *testing.T) { trap16(t, &budgets{t, b.nodes, b.by}) })
}

// trap03: what callers have reserved that have gone meanwhile, and never settle it, is free again at its deadline.
func trap03(t *testing.T, b *budgets) {
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(time.Millisecond))))
		_, err := b.by[i%3].Reserve(ctx, sluice.ReserveRequest{Keys: b.keys("job=a", "job=b"), Units: 1, TTL: 300 * time.Millisecond})
		if cancel(); err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
	}
	for _, job := range []string{"a", "b"} {
		await(t, "free again", func() bool {
			d, err := b.by[0].Key("llm", "job", job).Read(t.Context(), 1)
			return err == nil && d.Remaining == 100
		})
	}
}

// trap07: units of three budgets are reserved in all or in none, whichever nodes own them and whichever is asked.
func trap07(t *testing.T, b *budgets) {
	owners := make(map[string]bool)
	for i := range 30 {
		user, team, model := fmt.Sprint("user=", i), fmt.Sprint("team=", i), fmt.Sprint("model=", i)
		var before int64
		if i%2 > 0 {
			before = 91
			b.reserve(i%3, sluice.ReserveRequest{Units: before}, user)
		}
		x := b.reserve(i%3, sluice.ReserveRequest{Units: 10}, model, user, team)
		for _, d := range x.Decisions {
			owners[d.Owner] = true
		}
		got := int64(10)
		if before > 0 {
			got = 0
		}
		if x.Allowed != (got > 0) || x.Units != got {
			t.Errorf("%d: %+v", i, x)
		}
		b.wants("reserved", user, 100-before-got)
		b.wants("reserved", team, 1000-got)
		b.wants("reserved", model, 100_000-got)
		if x.Allowed {
			b.settle((i+1)%3, x, 3, sluice.Settlement{Charged: 3, Returned: 7})
			b.wants("settled", user, 97)
			b.wants("settled", team, 997)
		}
	}
	if len(owners) != 3 {
		t.Errorf("the budgets were of the owners %v", owners)
	}
}

// trap16: every node lists what is held of a counter, by whom, since when and until when, also after a handoff.
func trap16(t *testing.T, b *budgets) {
	x := b.reserve(0, sluice.ReserveRequest{Units: 40, TTL: 300 * time.Second}, "user=ann")
	wants := func(what string) {
		t.Helper()
		for _, n := range b.nodes {
			var held struct {
				Holdings []struct {
					Use, Caller  string
					Units        int64
					Since        float64
					ExpiresAfter float64 `json:"expires_after"`
				}
				Count, Units int64
			}
			if status := n.post(t, "/v1/held", `{"domain":"llm","descriptor":["user=ann"]}`, &held); status != http.StatusOK {
				t.Fatalf("%s, by %s: status %d", what, n.config.Name, status)
			}
			if held.Count != 1 || held.Units != 40 || len(held.Holdings) != 1 {
				t.Fatalf("%s, by %s: %+v", what, n.config.Name, held)
			}
			if h := held.Holdings[0]; h.Use != "reservation" || h.Caller != "billing" || h.Units != 40 || h.Since <= 0 || h.Since > 60 || h.ExpiresAfter <= 0 || h.ExpiresAfter > 300 {
				t.Errorf("%s, by %s: %+v", what, n.config.Name, h)
			}
		}
	}
	wants("reserved")
	b.reserve(1, sluice.ReserveRequest{Units: 2}, "tool=x")
	var slots struct {
		Holdings []struct {
			Use, Caller string
			Units       int64
		}
	}
	b.nodes[2].post(t, "/v1/held", `{"domain":"llm","descriptor":["tool=x"]}`, &slots)
	if len(slots.Holdings) != 1 || slots.Holdings[0].Use != "slot" || slots.Holdings[0].Caller != "billing" || slots.Holdings[0].Units != 2 {
		t.Errorf("slots: %+v", slots)
	}
	for i, n := range b.nodes {
		if n.config.Name == x.Decisions[0].Owner {
			do(t, n.stop())
			b.nodes = append(b.nodes[:i:i], b.nodes[i+1:]...)
			break
		}
	}
	wants("handed off")
}

// reserveWaits: a reservation of slots waits for them in one line, whichever node is asked, and those that need all of them follow each
// other.
func reserveWaits(t *testing.T, b *budgets) {
	const body = `{"checks":[{"domain":"llm","descriptor":["tool=t"]},{"domain":"llm","descriptor":["user=w"]}],"units":3,"ttl":60,"wait":60}`
	const lasts = 300 * time.Millisecond
	began := time.Now()
	if x := b.reserve(0, sluice.ReserveRequest{Units: 3, TTL: lasts}, "tool=t"); !x.Allowed {
		t.Fatal(x)
	}
	var inUse atomic.Int64
	var all sync.WaitGroup
	for i := range 9 {
		all.Go(func() {
			var x struct {
				Allowed     bool
				Reservation string
				Units       int64
			}
			if status := b.nodes[i%3].post(t, "/v1/reserve", body, &x); status != 200 || !x.Allowed || x.Units != 3 || time.Since(began) < lasts {
				t.Errorf("%d %+v after %v", status, x, time.Since(began))
				return
			}
			if n := inUse.Add(3); n != 3 {
				t.Errorf("%d in use", n)
			}
			inUse.Add(-3)
			if _, err := b.by[(i+1)%3].Settle(t.Context(), x.Reservation, 2); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	b.wants("all have ended", "tool=t", 3)
	b.wants("what they needed", "user=w", 100-9*2)
}

// acquireWith: a slot comes with units of keys of other owners, or with none of them.
func acquireWith(t *testing.T, b *budgets) {
	paused := longestPause(t)
	c := b.by[2]
	do(t, c.Ready(t.Context()))
	for i := range 10 {
		name := fmt.Sprint("slots", i)
		keys := []sluice.Key{c.Key("llm", "tool", "a"+name), c.Key("llm", "tool", "b"+name), c.Key("llm", "user", name), c.Key("llm", "model", name)}
		ask := sluice.AcquireRequest{Key: keys[0], With: keys[1:], Units: 2}
		x, err := c.Acquire(t.Context(), ask)
		if err != nil || !x.Allowed || x.ID == "" {
			t.Fatalf("%+v %v", x, err)
		}
		wants := func(what string, tools, others int64) {
			t.Helper()
			for j, left := range []int64{tools, tools, 100 - others, 100_000 - others} {
				if d, err := keys[j].Read(t.Context(), 1); err != nil || d.Remaining != left {
					t.Errorf("%s: key %d: %d left, want %d; %v", what, j, d.Remaining, left, err)
				}
			}
		}
		wants("held", 1, 2)
		if _, err := keys[2].Charge(t.Context(), 97); err != nil {
			t.Fatal(err)
		}
		ask.MaxWait, ask.Key, ask.With = -1, keys[1], []sluice.Key{c.Key("llm", "tool", "free"), keys[2], keys[3]}
		if denied, err := c.Acquire(t.Context(), ask); x.Context().Err() != nil && paused() > slotPause {
			t.Logf("this process got no processor for %v, so that the slots have ended: %v", paused(), context.Cause(x.Context()))
			continue
		} else if !errors.Is(err, sluice.ErrDenied) || denied.Rule != "llm/tool" {
			t.Errorf("the slots are in use: %+v %v", denied, err)
		}
		x.Release()
		await(t, "released", func() bool { d, err := keys[1].Read(t.Context(), 3); return err == nil && d.Allowed })
		if denied, err := c.Acquire(t.Context(), ask); !errors.Is(err, sluice.ErrDenied) || denied.Rule != "llm/user" {
			t.Errorf("the user has 1 left: %+v %v", denied, err)
		}
		if d, err := keys[3].Read(t.Context(), 1); err != nil || d.Remaining != 100_000-2 {
			t.Errorf("a denial has taken units: %+v %v", d, err)
		}
	}
}
