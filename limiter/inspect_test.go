package limiter

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/onenode"
)

// inspected is a Limiter whose node holds every key, on a table.
func inspected(t testing.TB, n *onenode.Node, change ...func(*Config)) *Limiter {
	return newService(t, n, append([]func(*Config){func(c *Config) {
		c.Cluster.(*fakeCluster).keyFacts = func(_ context.Context, key bucket.Key, limits *bucket.Limits) (facts.Key, error) {
			k := facts.Key{Node: "n2", Owner: true, Gen: 3, Partition: 4}
			list, known := n.Table.Look(n.Now.Load(), key, limits)
			for _, s := range list {
				k.Limits = append(k.Limits, facts.Limit(s))
			}
			k.Counted = known
			return k, nil
		}
	}}, change...)...)
}

func TestInspect(t *testing.T) {
	n := newNode(t)
	s := inspected(t, n, func(c *Config) {
		c.Cluster.(*fakeCluster).askKeyFacts = func(context.Context, bucket.Key, *bucket.Limits) ([]facts.Key, []string) {
			return []facts.Key{
				{Node: "n4", Replica: true, Leased: true, LeaseLeft: 2},
				{Node: "n1", Owner: true, Gen: 2, Limits: []facts.Limit{{Limit: 9}}}, // deposed, and has not heard of it
				{Node: "n3", Replica: true, Complete: true, Denies: time.Millisecond},
			}, []string{"n9", "n8"}
		}
	})
	s.SetRules(parse(t, privateRules))
	mustCheck(t, s, batch(t, entry("user", "ann"), entry("user", "ann")))
	ann := Check{Domain: "shop", Descriptor: []rules.Entry{{Key: "user", Value: "ann"}}}
	x, err := s.Inspect(t.Context(), &ann)
	if err != nil {
		t.Fatal(err)
	}
	if x.Rule.Name != "shop/user" || x.Partition != 4 || x.Owner != "n2" || x.Gen != 3 || !x.Counted || !strings.HasPrefix(x.Shown[0].Value, "redacted:") ||
		!reflect.DeepEqual(x.Replicas, []string{"n3"}) || !reflect.DeepEqual(x.InitialSync, []string{"n4"}) ||
		!reflect.DeepEqual(x.Leases, []Lease{{"n4", 2}}) || !reflect.DeepEqual(x.Denying, []string{"n3"}) ||
		!reflect.DeepEqual(x.Missing, []string{"n8", "n9"}) || !x.Explanation.Known {
		t.Errorf("%+v", x)
	}
	if want := []facts.Limit{{Limit: 3, Spent: 2, Remaining: 1, ResetAfter: time.Minute}}; !reflect.DeepEqual(x.Limits, want) {
		t.Errorf("%+v, want %+v", x.Limits, want)
	}
	if again, _ := s.Inspect(t.Context(), &ann); again.Limits[0].Spent != 2 {
		t.Errorf("looking has spent: %+v", again.Limits)
	}
}

// TestInspectNothing: what has no counter, and what cannot be asked.
func TestInspectNothing(t *testing.T) {
	n := newNode(t)
	gone := errors.New("stopping")
	for _, c := range []struct {
		name, domain, key string
		change            func(*Config)
		want              string
	}{
		{"no rule", "shop", "nobody", nil, "<nil> nothing matches nobody=x at level 1"},
		{"unlimited", "shop", "free", nil, "<nil> the rule at"},
		{"no domain", "", "user", nil, "domain: empty"},
		{"no key", "shop", "", nil, "descriptor[0].key: empty"},
		{"unknown domain", "other", "user", nil, `<nil> no rule file describes the domain "other"`},
		{"rejected domain", "other", "user", func(c *Config) { c.RejectUnknownDomains = true }, `<nil> no rule file describes the domain "other"`},
		{"stopping", "shop", "user", func(c *Config) {
			c.Cluster.(*fakeCluster).keyFacts = func(context.Context, bucket.Key, *bucket.Limits) (facts.Key, error) { return facts.Key{}, gone }
		}, "the node has not answered for itself: stopping"},
	} {
		change := c.change
		if change == nil {
			change = func(*Config) {}
		}
		s := inspected(t, n, change)
		x, err := s.Inspect(t.Context(), &Check{Domain: c.domain, Descriptor: []rules.Entry{{Key: c.key, Value: "x"}}})
		if got := fmt.Sprint(err, " ", x.Explanation.Reason); !strings.Contains(got, c.want) || x.Owner != "" || len(x.Limits) != 0 {
			t.Errorf("%s: %q %+v, want %q", c.name, got, x, c.want)
		}
		if got := strings.Join(x.Domains, " "); c.domain == "other" != (got == "shop") {
			t.Errorf("%s: the domains are %q", c.name, got)
		}
	}
}

// TestHeldWithoutOwner: what is held of a key is not "nothing" while no node owns it: Held asks again
// until one does, for two seconds, and then says that it is not known.
func TestHeldWithoutOwner(t *testing.T) {
	for _, c := range []struct {
		name       string
		ownedAfter time.Duration
		took       time.Duration
		want       string
	}{
		{"owned", 0, 0, ""},
		{"owned again in a moment", 300 * time.Millisecond, 350 * time.Millisecond, ""},
		{"never", time.Hour, 2 * time.Second, "no node owns this key just now"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := inspected(t, newNode(t), func(config *Config) {
					config.Cluster.(*fakeCluster).keyFacts = func(_ context.Context, _ bucket.Key, limits *bucket.Limits) (facts.Key, error) {
						owned := time.Since(began) >= c.ownedAfter
						return facts.Key{Node: "n2", Owner: owned, Replica: !owned, Limits: make([]facts.Limit, limits.Len())}, nil
					}
				})
				s.SetRules(parse(t, privateRules))
				list, all, units, err := s.Held(t.Context(), &Check{Domain: "shop", Descriptor: []rules.Entry{{Key: "user", Value: "ann"}}})
				var coded *Error
				switch {
				case c.want == "" && (err != nil || len(list) != 0 || all != 0 || units != 0):
					t.Errorf("%v, %d, %d: %v", list, all, units, err)
				case c.want != "" && (!errors.As(err, &coded) || coded.Code != Unavailable || !strings.Contains(err.Error(), c.want)):
					t.Errorf("%v, want Unavailable with %q", err, c.want)
				}
				if took := time.Since(began); took > c.took || took < min(c.ownedAfter, c.took) {
					t.Errorf("it took %v, want %v at most", took, c.took)
				}
			})
		})
	}
}
