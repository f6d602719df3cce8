package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/topk"
	"github.com/sluicecluster/sluice/rules"
)

// counted is a Limiter of which the test moves the clock, in a cluster of one called n1.
func counted(t testing.TB, now *time.Duration, change ...func(*Config)) *Limiter {
	return newService(t, newNode(t), append([]func(*Config){func(c *Config) {
		c.Clock = func() time.Duration { return *now }
		c.Cluster.(*fakeCluster).overview = func(context.Context) Overview { return Overview{View: &member.View{Self: "n1"}} }
	}}, change...)...)
}

func top(t testing.TB, s *Limiter, by TopBy, n int) Top {
	t.Helper()
	got, err := s.Top(t.Context(), TopQuery{By: by, N: n, Operator: true})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestTop: checks and denials are counted by key, each under its own name.
func TestTop(t *testing.T) {
	var now time.Duration
	s := counted(t, &now)
	for range 5 {
		mustCheck(t, s, batch(t, entry("user", "ann"), entry("addr", "10.0.0.7"), entry("watched", "w"),
			all(entry("user", "inline"), limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 4, Period: time.Minute}))))
	}
	for range 4 {
		mustCheck(t, s, batch(t, entry("addr", "10.0.0.8"), entry("free", "x"), entry("nobody", "y"), all(entry("user", "bob"), cost(-1)),
			all(entry("user", "bob"), verb(bucket.Read)), all(entry("user", "bob"), verb(bucket.Charge)), all(entry("user", "bob"), cost(1))))
	}
	now = 30 * time.Second
	got := top(t, s, ByFrequent, 10)
	want := []TopKey{
		{Domain: "shop", Rule: "shop/addr", Descriptor: []rules.Entry{{Key: "addr", Value: "10.0.0.0/24"}}, Count: 9},
		{Domain: "shop", Rule: "shop/user", Descriptor: []rules.Entry{{Key: "user", Value: "ann"}}, Count: 5},
		{Domain: "shop", Descriptor: []rules.Entry{{Key: "user", Value: "inline"}}, Count: 5},
		{Domain: "shop", Rule: "watch", Descriptor: []rules.Entry{{Key: "watched", Value: "w"}}, Count: 5},
		{Domain: "shop", Rule: "shop/user", Descriptor: []rules.Entry{{Key: "user", Value: "bob"}}, Count: 4},
	}
	for i := range want {
		want[i].PerSecond = float64(want[i].Count) / 30
	}
	if !reflect.DeepEqual(got, Top{By: ByFrequent, Covers: 30 * time.Second, Keys: want, Nodes: []string{"n1"}}) {
		t.Errorf("frequent:\n%+v\nwant\n%+v", got, want)
	}
	got = top(t, s, ByLimited, 3)
	var counts []string
	for _, k := range got.Keys {
		counts = append(counts, fmt.Sprint(k.Descriptor[0].Value, " ", k.Count))
	}
	if want := "10.0.0.0/24 8, w 4, bob 3"; strings.Join(counts, ", ") != want {
		t.Errorf("limited: %v, want %s", counts, want)
	}
	now = 5 * time.Minute
	if got := top(t, s, ByFrequent, 10); len(got.Keys) != 0 || got.Covers < time.Minute || got.Covers > 80*time.Second {
		t.Errorf("later: %+v", got)
	}
}

// TestTopWhole: what is given back with a failed call was not limited.
func TestTopWhole(t *testing.T) {
	var now time.Duration
	s := counted(t, &now)
	b := batch(t, entry("user", "ann"), entry("blocked", "x"))
	b.AllOrNothing = true
	mustCheck(t, s, b)
	if got := top(t, s, ByLimited, 10); len(got.Keys) != 1 || got.Keys[0].Descriptor[0].Key != "blocked" {
		t.Errorf("%+v", got.Keys)
	}
	s.SetRules(parse(t, elasticRules))
	b = batch(t, all(entry("high", "x"), cost(4)), all(entry("plain", "p"), cost(1)))
	b.AllOrNothing = true
	mustCheck(t, s, b)
	if got := top(t, s, ByLimited, 10); len(got.Keys) != 1 {
		t.Errorf("what a pool admitted was limited: %+v", got.Keys)
	}
}

// TestTopSamples: of many checks one in 16 is counted, and stands for the others.
func TestTopSamples(t *testing.T) {
	var now time.Duration
	s := counted(t, &now)
	s.top.random = rand.New(rand.NewPCG(3, 4)).Uint32
	s.config.Decider = decideFunc(allow)
	const hot = 24_000
	for i := range hot {
		now = time.Duration(i) * 20 * time.Second / hot
		mustCheck(t, s, batch(t, entry("user", "hot")))
	}
	got := top(t, s, ByFrequent, 1).Keys[0].Count
	if got < hot*9/10 || got > hot*11/10 {
		t.Errorf("%d checks are told as %d", hot, got)
	}
	if every := s.top.every.Load(); every != sampleOneIn {
		t.Errorf("one in %d is counted while there are many", every)
	}
	for range 100 { // few again: one of the first of them shows it
		now += time.Second
		mustCheck(t, s, batch(t, entry("user", "cold")))
	}
	if every := s.top.every.Load(); every != 1 {
		t.Errorf("one in %d is counted of few", every)
	}
}

func TestTopRejected(t *testing.T) {
	var now time.Duration
	for _, c := range []struct {
		name string
		keys TopKeys
		q    TopQuery
		want string
	}{
		{"off", TopOff, TopQuery{N: 1}, "this node counts no top keys; start it with --top-keys=local or on"},
		{"no operator", TopLocal, TopQuery{N: 1}, ErrNotOperator.Message},
		{"an operator", TopLocal, TopQuery{N: 1, Operator: true}, ""},
		{"no operator, where it is on", TopOn, TopQuery{N: 1}, ""},
		{"none", TopOn, TopQuery{}, "n: 0; want 1 to 100"},
		{"too many", TopOn, TopQuery{N: 101}, "n: 101; want 1 to 100"},
		{"by something", TopOn, TopQuery{N: 1, By: 2}, "by: unknown value 2; want limited or frequent"},
		{"a long domain", TopOn, TopQuery{N: 1, Domain: strings.Repeat("d", MaxText+1)}, "domain: 1025 bytes; want at most 1024"},
	} {
		s := counted(t, &now, func(config *Config) { config.TopKeys = c.keys })
		_, err := s.Top(t.Context(), c.q)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	if s := counted(t, &now, func(c *Config) { c.TopKeys = TopOff }); !s.TopHere(TopQuery{}).Off {
		t.Error("a node that counts nothing does not say so")
	}
}

// TestTopOfAll: counts of one key on several nodes are added up, under one name, and who did not answer is told.
func TestTopOfAll(t *testing.T) {
	now := 10 * time.Second
	var asked TopQuery
	var others []NodeTop
	s := counted(t, &now, func(c *Config) {
		c.Cluster.(*fakeCluster).askTop = func(_ context.Context, q TopQuery) ([]NodeTop, []string) {
			asked = q
			return others, []string{"n9", "n4"}
		}
	})
	ask := func(domainName string, n int) {
		for range n {
			mustCheck(t, s, batch(t, all(entry("user", "ann"), domain(domainName), limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 9, Period: time.Minute}))))
		}
	}
	ask("shop", 2)
	ask("other", 1)
	ann := s.TopHere(TopQuery{By: ByFrequent, Domain: "shop"}).Keys
	if len(ann) != 1 {
		t.Fatalf("of one domain: %v", ann)
	}
	ann[0].Count, ann[0].Error = 40, 3
	bob := named{check: &Check{Domain: "shop", Descriptor: []rules.Entry{{Key: "user", Value: "bob"}}}}
	others = []NodeTop{
		{Node: "n3", Covers: 20 * time.Second, Keys: append(ann, topk.Entry{Key: bucket.Key{Lo: 1}, Count: 99, Name: []byte{9, 9}})},
		{Node: "n2", Covers: 5 * time.Second, Keys: []topk.Entry{{Key: bucket.Key{Lo: 2}, Count: 10, Name: bob.AppendName(nil)}}},
		{Node: "n5", Off: true},
	}
	got, err := s.Top(t.Context(), TopQuery{By: ByFrequent, N: 5, Domain: "shop", Operator: true})
	want := Top{
		By: ByFrequent, Covers: 20 * time.Second, Nodes: []string{"n1", "n2", "n3"}, Missing: []string{"n4", "n5", "n9"},
		Keys: []TopKey{
			{Domain: "shop", Descriptor: []rules.Entry{{Key: "user", Value: "ann"}}, Count: 42, Error: 3, PerSecond: 2.2},
			{Domain: "shop", Descriptor: []rules.Entry{{Key: "user", Value: "bob"}}, Count: 10, PerSecond: 2},
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, got, want)
	}
	if asked.Domain != "shop" || asked.By != ByFrequent {
		t.Errorf("others were asked %+v", asked)
	}
}

// TestNames: names are bounded, whatever is in them, and come back as far as they go.
func TestNames(t *testing.T) {
	wide := strings.Repeat("ä", 80) // 160 bytes
	long := make([]rules.Entry, 64)
	for i := range long {
		long[i] = rules.Entry{Key: fmt.Sprint("k", i), Value: strings.Repeat("v", 1024)}
	}
	for _, c := range []struct {
		name    string
		check   Check
		cut     bool
		entries int
	}{
		{"plain", Check{Domain: "shop", Descriptor: []rules.Entry{{Key: "a", Value: ""}, {Key: "b", Value: "c"}}}, false, 2},
		{"a long domain", Check{Domain: wide, Descriptor: []rules.Entry{{Key: "a"}}}, true, 1},
		{"a long key", Check{Domain: "d", Descriptor: []rules.Entry{{Key: wide, Value: wide}}}, true, 1},
		{"long values", Check{Domain: "d", Descriptor: long}, true, 0},
		{"many", Check{Domain: "d", Descriptor: append([]rules.Entry{{Key: "a", Value: "b"}}, long...)}, true, 1},
	} {
		n := named{check: &c.check}
		data := n.AppendName([]byte("before"))[len("before"):]
		if len(data) > 3*maxName {
			t.Errorf("%s: %d bytes", c.name, len(data))
		}
		k, ok := readName(data)
		if !ok || k.Cut != c.cut || len(k.Descriptor) != c.entries || !utf8.ValidString(k.Domain) || !strings.HasPrefix(c.check.Domain, strings.TrimSuffix(k.Domain, "…")) {
			t.Errorf("%s: %+v, %v", c.name, k, ok)
		}
		for i, e := range k.Descriptor {
			if !utf8.ValidString(e.Key) || !c.cut && e != c.check.Descriptor[i] {
				t.Errorf("%s: entry %d is %+v", c.name, i, e)
			}
		}
		if !isOfDomain(data, c.check.Domain) || isOfDomain(data, c.check.Domain[:1]+"x") {
			t.Errorf("%s is not of its domain", c.name)
		}
		for cut := range data {
			if k, ok := readName(data[:cut]); ok && len(k.Descriptor) >= c.entries && c.entries > 0 {
				t.Errorf("%s: %d of %d bytes are read as %+v", c.name, cut, len(data), k)
			}
		}
	}
	for _, wrong := range []string{"", "\x00", "\x03\x00\x00\x00\x00", "\x01", "\x01\x00\x00", "\x01\x00\x05a", "\x01\x00\x00\x00\x00\x00\x01k"} {
		if k, ok := readName([]byte(wrong)); ok {
			t.Errorf("%q is read as %+v", wrong, k)
		}
	}
}
