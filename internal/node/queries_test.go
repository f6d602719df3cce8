package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/topk"
	"github.com/sluicecluster/sluice/limiter"
)

// asked are nodes that ask each other, but for those who are isolated.
type asked struct {
	nodes    map[string]limiter.NodeTop
	isolated map[string]bool
}

// of returns what the node name asks the others with.
func (m *asked) of(name string) *peerQueries {
	others := func() map[message.Peer]string {
		list := map[message.Peer]string{}
		for other := range m.nodes {
			if other != name {
				list[message.Peer{Name: other, Boot: other + "-1"}] = "addr of " + other
			}
		}
		return list
	}
	return newPeerQueries(others, func(ctx context.Context, addr string, b message.Body) (message.Body, error) {
		other := strings.TrimPrefix(addr, "addr of ")
		if m.isolated[name] || m.isolated[other] {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		q := b.(*message.TopRequest)
		top := m.nodes[other]
		top.Keys = []topk.Entry{{Key: bucket.Key{Lo: uint64(q.By)}, Name: []byte(q.Domain), Count: 7, Error: 1}}
		return topAnswer(top), nil
	})
}

// TestTopAsk: all others are asked, and who does not answer in time is missing and holds up nobody.
func TestTopAsk(t *testing.T) {
	for _, c := range []struct {
		name     string
		isolated []string
		want     string
		took     time.Duration
	}{
		{"all answer", nil, "n2 5s, n3 6s; ", 0},
		{"one is isolated", []string{"n3"}, "n2 5s; n3", queryTimeout},
		{"nobody is reached", []string{"n1"}, "; n2, n3", queryTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &asked{nodes: map[string]limiter.NodeTop{"n1": {}, "n2": {Covers: 5 * time.Second}, "n3": {Covers: 6 * time.Second, Off: true}}, isolated: map[string]bool{}}
			for _, name := range c.isolated {
				m.isolated[name] = true
			}
			began := time.Now()
			answers, missing := m.of("n1").AskTop(t.Context(), limiter.TopQuery{By: limiter.ByFrequent, Domain: "shop"})
			took := time.Since(began)
			var got []string
			for _, a := range answers {
				got = append(got, fmt.Sprint(a.Node, " ", a.Covers))
				if a.Off != (a.Node == "n3") || len(a.Keys) != 1 || a.Keys[0].Key.Lo != 1 || string(a.Keys[0].Name) != "shop" || a.Keys[0].Count != 7 || a.Keys[0].Error != 1 {
					t.Errorf("%s: %+v", c.name, a)
				}
			}
			slices.Sort(got)
			if text := strings.Join(got, ", ") + "; " + strings.Join(missing, ", "); text != c.want || took != c.took {
				t.Errorf("%s: %q after %v, want %q after %v", c.name, text, took, c.want, c.took)
			}
		})
	}
}

// TestTopAskBounded: callers that are too many get no answers of others, at once, and later ones do again.
func TestTopAskBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &asked{nodes: map[string]limiter.NodeTop{"n1": {}, "n2": {}}, isolated: map[string]bool{"n2": true}}
		q := m.of("n1")
		began := time.Now()
		for range maxQueries {
			go q.AskTop(t.Context(), limiter.TopQuery{})
		}
		synctest.Wait()
		if _, missing := q.AskTop(t.Context(), limiter.TopQuery{}); len(missing) != 1 || time.Since(began) > 0 {
			t.Errorf("one call too many: missing %v after %v", missing, time.Since(began))
		}
		time.Sleep(queryTimeout)
		synctest.Wait()
		m.isolated["n2"] = false
		if _, missing := q.AskTop(t.Context(), limiter.TopQuery{}); len(missing) != 0 {
			t.Errorf("when the others are done: missing %v", missing)
		}
	})
}
