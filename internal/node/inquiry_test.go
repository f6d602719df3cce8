package node

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
