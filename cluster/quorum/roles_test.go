package quorum_test

import (
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestPassIsForOneVersion: a process that wishes to pass on a role wants that in the next version of the set that it knows, and in no later one.
func TestPassIsForOneVersion(t *testing.T) {
	three, four := set(3, "x", "y", "z"), set(4, "x", "y", "z")
	four.Roles = []message.Role{{Of: "y", At: "y", By: "2"}}
	pass := message.Role{Of: "y", At: "z", By: "1"}
	for _, c := range []struct {
		name     string
		said     []message.Heartbeat // by y; then z says that it knows the newest set
		proposes bool
	}{
		{"now", []message.Heartbeat{{Set: three, Pass: pass}}, true},
		{"not any more", []message.Heartbeat{{Set: three, Pass: pass}, {Set: three, Sent: 1}}, false},
		{"before a version", []message.Heartbeat{{Set: three, Pass: pass}, {Set: four, Sent: 1}}, false},
		{"before a version of others", []message.Heartbeat{{Set: three, Pass: pass}}, false},
		{"late", []message.Heartbeat{{Set: four}, {Set: three, Pass: pass, Sent: 1}}, false},
		{"again", []message.Heartbeat{{Set: three, Pass: pass}, {Set: four, Pass: pass, Sent: 1}}, true},
		{"what it has", []message.Heartbeat{{Set: four, Pass: four.Roles[0]}}, false},
		{"of another", []message.Heartbeat{{Set: three, Pass: message.Role{Of: "z", At: "y", By: "1"}}}, false},
	} {
		l := newLone(t, three)
		l.Introduced(y)
		for _, h := range c.said {
			h.Sent += 3000 * ms
			l.say(h.Sent, y, &h)
		}
		known := l.Set()
		if c.name == "before a version of others" {
			known = four
		}
		l.say(3001*ms, z, &message.Heartbeat{Sent: 3001 * ms, Set: known})
		l.Tick(3700 * ms) // no acknowledgement counts any more
		proposes := slices.ContainsFunc(l.to(y), func(b message.Body) bool {
			p, ok := b.(*message.Prepare)
			return ok && p.Ballot.Round > 0
		})
		if proposes != c.proposes {
			t.Errorf("%s: a proposal: %v, want %v", c.name, proposes, c.proposes)
		}
	}
}

// TestPassEndsWithTheVersion: this process wants a role to be passed on in the next version, and in a later one only if it says so again.
func TestPassEndsWithTheVersion(t *testing.T) {
	pass := message.Role{Of: "x", At: "z", By: "1"}
	l := newLone(t, set(3, "x", "y", "z"))
	l.Pass(3000*ms, pass)
	wants := func(want message.Role) {
		t.Helper()
		l.Wish(3001*ms, message.Join)
		for _, b := range l.to(y) {
			if h, ok := b.(*message.Heartbeat); ok && h.Pass != want {
				t.Errorf("%+v, want %+v", h.Pass, want)
			}
		}
	}
	wants(pass)
	l.say(3002*ms, y, &message.Heartbeat{Sent: 3002 * ms, Set: set(4, "x", "y", "z", "zz")})
	l.Wish(3003*ms, message.Stay)
	wants(message.Role{})
}
