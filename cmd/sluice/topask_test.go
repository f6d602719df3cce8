package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/heavy"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// mailed are nodes that write to each other, but for those who are isolated.
type mailed struct {
	nodes    map[string]*inquiries
	isolated map[string]bool
	twice    bool
}

func (m *mailed) add(name string, top limiter.NodeTop) {
	self := message.Peer{Name: name, Boot: name + "-1"}
	post := func(to message.Peer, b message.Body) {
		e := message.Envelope{From: self, To: to, Body: b}
		if !m.isolated[to.Name] {
			m.nodes[to.Name].deliver(e)
			if m.twice {
				m.nodes[to.Name].deliver(e)
			}
		}
	}
	tell := func(b message.Body) (told []message.Peer) {
		for other := range m.nodes {
			if other != name {
				told = append(told, message.Peer{Name: other, Boot: other + "-1"})
				post(told[len(told)-1], b)
			}
		}
		return told
	}
	m.nodes[name] = newInquiries(tell, post, func(_ context.Context, b message.Body) message.Body {
		q := b.(*message.TopAsk)
		top.Keys = []heavy.Entry{{Key: bucket.Key{Lo: uint64(q.By)}, Name: []byte(q.Domain), Count: 7, Error: 1}}
		return topAnswer(q, top)
	})
}

// TestTopAsk: all others are asked, and who does not answer in time is missing and holds up nobody.
func TestTopAsk(t *testing.T) {
	for _, c := range []struct {
		name     string
		isolated []string
		twice    bool
		want     string
		took     time.Duration
	}{
		{"all answer", nil, false, "n2 5s, n3 6s; ", 0},
		{"letters come twice", nil, true, "n2 5s, n3 6s; ", 0},
		{"one is isolated", []string{"n3"}, false, "n2 5s; n3", inquiryPatience},
		{"answers get lost", []string{"n1"}, false, "; n2, n3", inquiryPatience},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &mailed{nodes: map[string]*inquiries{}, isolated: map[string]bool{}, twice: c.twice}
			for _, name := range c.isolated {
				m.isolated[name] = true
			}
			m.add("n1", limiter.NodeTop{})
			m.add("n2", limiter.NodeTop{Covers: 5 * time.Second})
			m.add("n3", limiter.NodeTop{Covers: 6 * time.Second, Off: true})
			ctx, cancel := context.WithCancel(t.Context())
			for _, n := range m.nodes {
				go n.run(ctx)
			}
			began := time.Now()
			answers, missing := m.nodes["n1"].top(ctx, limiter.TopQuery{By: limiter.ByFrequent, Domain: "shop"})
			took := time.Since(began)
			var got []string
			for _, a := range answers {
				got = append(got, fmt.Sprint(a.Node, " ", a.Covers))
				if a.Off != (a.Node == "n3") || len(a.Keys) != 1 || a.Keys[0].Key.Lo != 1 || string(a.Keys[0].Name) != "shop" || a.Keys[0].Count != 7 || a.Keys[0].Error != 1 {
					t.Errorf("%s: %+v", c.name, a)
				}
			}
			slices.Sort(got)
			slices.Sort(missing)
			if text := strings.Join(got, ", ") + "; " + strings.Join(missing, ", "); text != c.want || took != c.took {
				t.Errorf("%s: %q after %v, want %q after %v", c.name, text, took, c.want, c.took)
			}
			m.nodes["n1"].deliver(message.Envelope{Body: &message.Top{ID: 1}}) // late
			if n := len(m.nodes["n1"].mu.calls); n != 0 {
				t.Errorf("%d calls are left", n)
			}
			cancel()
			synctest.Wait()
		})
	}
}

// TestTopAskBounded: callers that are too many get no answers of others, and what others ask is dropped
// when it is too much.
func TestTopAskBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mailed{nodes: map[string]*inquiries{}}
		m.add("n1", limiter.NodeTop{})
		m.add("n2", limiter.NodeTop{}) // nobody runs it
		began := time.Now()
		for range maxInquiries {
			go m.nodes["n1"].top(t.Context(), limiter.TopQuery{})
		}
		synctest.Wait()
		if _, missing := m.nodes["n1"].top(t.Context(), limiter.TopQuery{}); len(missing) != 1 || time.Since(began) > 0 {
			t.Errorf("one call too many: missing %v after %v", missing, time.Since(began))
		}
		for range 2 * maxAsks {
			m.nodes["n2"].deliver(message.Envelope{Body: &message.TopAsk{}})
		}
		if n := len(m.nodes["n2"].asks); n != maxAsks {
			t.Errorf("%d asks wait, want %d", n, maxAsks)
		}
		time.Sleep(2 * inquiryPatience)
	})
}

func TestTopText(t *testing.T) {
	res := &sluicev1.TopResponse{
		CoversNs: int64(70 * time.Second), Nodes: []string{"n1", "n2"}, Missing: []string{"n3"},
		Keys: []*sluicev1.TopKey{
			{Domain: "api", Rule: "per user", Count: 700, Error: 3, PerSecond: 10, Descriptor_: []*sluicev1.Entry{{Key: "tier", Value: "free"}, {Key: "user", Value: "ann b"}}},
			{Domain: "api", Count: 7, PerSecond: 0.1, Cut: true, Descriptor_: []*sluicev1.Entry{{Key: "x", Value: "\x1b[2J\t"}}},
		},
	}
	want := "most limited keys of the last 1m10s, by n1, n2\nwithout n3\n" +
		"PER SECOND  DENIED  DOMAIN  KEY                     RULE\n" +
		"10.0        700 -3  api     tier=free \"user=ann b\"  \"per user\"\n" +
		"0.1         7       api     \"x=\\x1b[2J\\t\" …         \n"
	if got := topText("limited", res); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestTopCommand asks a running node, and one that counts nothing.
func TestTopCommand(t *testing.T) {
	n := startNode(t, testSettings(t))
	addr := n.listen.grpc.Addr().String()
	for range 5 {
		cli("check", "--addr", addr, "--domain", "auth", "user=ann")
	}
	code, out, errs := cli("top", "--addr", addr, "--once")
	if code != 0 || !strings.Contains(out, "most limited keys of the last") || !strings.Contains(out, "user=ann") || !strings.Contains(out, " 3 ") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	code, out, _ = cli("top", "--addr", addr, "--once", "--by", "frequent", "-o", "json", "--domain", "auth")
	if code != 0 || !strings.Contains(out, `"keys":[{"domain":"auth","descriptor":[{"key":"user","value":"ann"}],"rule":"auth/user","count":5,`) ||
		!strings.Contains(out, `"missing":[]`) {
		t.Errorf("%d %s", code, out)
	}
	if _, out, _ = cli("top", "--addr", addr, "--once", "-o", "json", "--domain", "other"); !strings.Contains(out, `"keys":[]`) {
		t.Errorf("of another domain: %s", out)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--by", "size"}, `--by: "size" is neither limited nor frequent`},
		{[]string{"-n", "0"}, "--number: 0 is not 1 to 100"},
		{[]string{"-n", "101"}, "--number: 101 is not 1 to 100"},
		{[]string{"--interval", "1ms"}, "--interval: 1ms is below 100ms"},
		{[]string{"-o", "xml"}, "--output"},
	} {
		if code, _, errs := cli(append([]string{"top", "--addr", addr, "--once"}, c.args...)...); code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d %s", c.args, code, errs)
		}
	}
	s := testSettings(t)
	s.topKeys = "off"
	off := startNode(t, s)
	if code, _, errs := cli("top", "--addr", off.listen.grpc.Addr().String(), "--once"); code != exitDenied || !strings.Contains(errs, "counts no top keys") {
		t.Errorf("off: %d %s", code, errs)
	}
	if code, _, errs := cli("serve", "--top-keys", "perhaps"); code != exitUsage || !strings.Contains(errs, `--top-keys: "perhaps" is none of off, local, on`) {
		t.Errorf("%d %s", code, errs)
	}
}
