//go:build linux

package network

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
)

// cut is one time in which a node was cut off.
type cut struct {
	node *labNode
	// The network was taken away and given back between these times.
	begin, begun, end, ended time.Time
}

// during takes a node's host off the network while f runs.
func (n *labNode) during(f func()) cut {
	n.lab.t.Helper()
	c := cut{node: n}
	c.begin, c.begun = n.lab.cut(n.host, true)
	f()
	c.end, c.ended = n.lab.cut(n.host, false)
	return c
}

// atRisk reports whether the answer is one of an owner that may have been cut off before a copy
// knew of it: sent to be copied within 50 ms before, or decided in the 50 ms before the gate shut.
func (c *cut) atRisk(k *audit.Check) bool {
	const gate = int64(50 * time.Millisecond)
	return k.Owner == c.node.name && byOwner(k) &&
		k.Answered >= c.begin.UnixNano()-gate && k.Sent <= c.begun.UnixNano()+gate
}

func byOwner(k *audit.Check) bool { return k.Source == "owned" || k.Source == "forwarded" }

// account is what the log of an audit says, key by key.
type account struct {
	t      *testing.T
	name   string
	checks []audit.Check
	keys   map[string]*spent
}

// spent is what was admitted of one key.
type spent struct {
	held, shared int64
	// apart is the part of shared that the node gave which was cut off, atRisk the part of held
	// that this node may not have told a copy.
	apart, atRisk int64
}

func (s *spent) add(other *spent) {
	s.held, s.shared, s.apart, s.atRisk = s.held+other.held, s.shared+other.shared, s.apart+other.apart, s.atRisk+other.atRisk
}

func readAccount(t *testing.T, name, path string) *account {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a := &account{t: t, name: name, keys: map[string]*spent{}}
	err = audit.ReadLog(file, func(c audit.Check) error {
		a.checks = append(a.checks, c)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range a.checks {
		c := &a.checks[i]
		key := a.keys[c.Key]
		if key == nil {
			key = &spent{}
			a.keys[c.Key] = key
		}
		switch {
		case c.Decision != "allowed":
		case byOwner(c):
			key.held++
		default:
			key.shared++
		}
	}
	return a
}

// judge holds every key to its limit and one share more, and what owners alone admitted to
// the limit. The cuts, all of one node, may also cost what it had not told a copy. The test is too
// short for anything to flow back into a bucket.
func (a *account) judge(limit, share int64, cuts ...cut) {
	a.t.Helper()
	for i := range a.checks {
		c := &a.checks[i]
		switch key := a.keys[c.Key]; {
		case c.Decision != "allowed":
		case !byOwner(c):
			if c.Node == cuts[0].node.grpc {
				key.apart++
			}
		case slices.ContainsFunc(cuts, func(cut cut) bool { return cut.atRisk(c) }):
			key.atRisk++
		}
	}
	var total, most spent
	over, faults := int64(0), 0
	for key, s := range a.keys {
		total.add(s)
		over += max(0, s.held+s.shared-limit)
		most = spent{max(most.held, s.held), max(most.shared, s.shared), max(most.apart, s.apart), max(most.atRisk, s.atRisk)}
		if s.held > limit+s.atRisk || s.apart > share || s.held+s.shared > limit+share+s.atRisk {
			faults++
			a.t.Logf("%s: owners admitted %d, %d of it at risk, and %d were shares, %d of them the cut-off node's; the limit is %d, a share %d",
				key, s.held, s.atRisk, s.shared, s.apart, limit, share)
		}
	}
	a.t.Logf("%s: %d keys: owners admitted %d, at most %d of it at risk; shares %d, %d of them of the cut-off node; above the limit %d; the most of one key: %+v",
		a.name, len(a.keys), total.held, total.atRisk, total.shared, total.apart, over, most)
	if faults > 0 {
		a.t.Errorf("%s: %d keys were admitted more than a cut may cost", a.name, faults)
	}
}

// judgeWaits holds the time that answers took, of the checks that match, to cutGap. No check
// ends without an answer, so a key's longest time without one is that of a check.
func (a *account) judgeWaits(what string, match func(*audit.Check) bool) {
	a.t.Helper()
	var took []time.Duration
	for i := range a.checks {
		if c := &a.checks[i]; match(c) {
			took = append(took, time.Duration(c.Answered-c.First))
		}
	}
	if len(took) == 0 {
		a.t.Errorf("%s: no answers %s", a.name, what)
		return
	}
	slices.Sort(took)
	at := func(part float64) time.Duration {
		return took[int(part*float64(len(took)-1))].Round(10 * time.Microsecond)
	}
	a.t.Logf("%s: %d answers %s took p50 %v, p99 %v, p999 %v, at most %v", a.name, len(took), what, at(0.5), at(0.99), at(0.999), at(1))
	if gap := cutGap(a.t); at(1) > gap {
		a.t.Errorf("%s: an answer %s took %v, want at most %v", a.name, what, at(1), gap)
	}
}

// judgeExact wants every key to be spent, owners and shares together, to exactly its limit.
func (a *account) judgeExact(limit int64) {
	a.t.Helper()
	exact := 0
	var total spent
	for key, s := range a.keys {
		total.add(s)
		if s.held+s.shared == limit {
			exact++
			continue
		}
		a.t.Errorf("%s: owners admitted %d and shares %d, the limit is %d", key, s.held, s.shared, limit)
	}
	a.t.Logf("%s: %d of %d keys ended at exactly their limit: owners admitted %d, shares %d", a.name, exact, len(a.keys), total.held, total.shared)
}
