package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	sluice "github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/rules"
)

// tokenRules are rules of reservations. Their windows do not end while a test runs.
const tokenRules = `domain: llm
descriptors:
  - key: user
    limits: [{algorithm: fixed_window, align: first_hit, count: 100, period: 240h}]
  - key: team
    limits: [{algorithm: fixed_window, align: first_hit, count: 1000, period: 240h}]
  - key: model
    limits: [{algorithm: fixed_window, align: first_hit, count: 100000, period: 240h}]
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

func startBudgets(t *testing.T, count int, change func(*Config)) *budgets {
	t.Helper()
	b := &budgets{t: t}
	for i, s := 0, testConfig(t); i < count; i++ {
		writeRule(t, s.Rules, tokenRules)
		change(&s)
		if i > 0 {
			s.Name, s.Join = "n"+string(rune('1'+i)), []string{b.nodes[0].gossip.Addr()}
		}
		b.nodes = append(b.nodes, startNode(t, s))
		c, _ := newClient(t, b.nodes[i].listen.grpc.Addr().String())
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

// reserve asks node i to reserve units of descriptors.
func (b *budgets) reserve(i int, r sluice.ReserveRequest, descriptors ...string) *sluice.Reservation {
	b.t.Helper()
	r.Keys = b.keys(descriptors...)
	x, err := b.by[i].Reserve(b.t.Context(), r)
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

// TestSettleWindow: a settlement is an error when --settle-window has passed. It charges nothing, and is counted.
func TestSettleWindow(t *testing.T) {
	t.Parallel()
	b := startBudgets(t, 1, func(s *Config) { s.SettleWindow = 50 * time.Millisecond })
	x := b.reserve(0, sluice.ReserveRequest{Units: 10}, "user=ann")
	b.settle(0, x, 4, sluice.Settlement{Charged: 4, Returned: 6})
	await(t, "forgotten", func() bool {
		_, err := b.by[0].Settle(context.Background(), x.ID, 9)
		if err != nil && (!errors.Is(err, limit.ErrNotFound) || !strings.Contains(err.Error(), "--settle-window")) {
			t.Fatal(err)
		}
		return err != nil
	})
	b.wants("settled too late", "user=ann", 96)
	if _, text := b.nodes[0].get(t, "/metrics"); !strings.Contains(text, `sluice_settlements_total{result="unknown"} 1`) {
		t.Error("sluice_settlements_total does not count it")
	}
}

// TestSettleWindowOfRules: by default outcomes are remembered for the longest max_ttl of the rules.
func TestSettleWindowOfRules(t *testing.T) {
	set, err := rules.Parse([]rules.File{{Name: "rules.yaml", Data: []byte(tokenRules)}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := longestTTL(set); got != time.Hour {
		t.Errorf("%v, want 1h", got)
	}
	if got := longestTTL(nil); got != 10*time.Minute {
		t.Errorf("without rules %v, want 10m", got)
	}
}
