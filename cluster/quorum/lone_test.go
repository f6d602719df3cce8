package quorum_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// lone is one machine, x; the test sends all its messages.
type lone struct {
	t *testing.T
	*quorum.Machine
}

var (
	x     = message.Peer{Name: "x", Boot: "1-x"}
	y     = message.Peer{Name: "y", Boot: "1-y"}
	z     = message.Peer{Name: "z", Boot: "1-z"}
	later = message.Peer{Name: "y", Boot: "2-y"}
)

func newLone(t *testing.T, s message.Set) lone {
	c := quorum.Config{Self: x, Expect: 1, Record: message.Record{Set: s}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return lone{t, quorum.New(c, 0)}
}

func set(version uint64, members ...string) message.Set {
	return message.Set{ID: "m", Version: version, Members: members}
}

// say gives x a message and returns the responses of x to its sender.
func (l lone) say(now int64, from message.Peer, b message.Body) []message.Body {
	l.Take()
	l.Step(now, message.Envelope{From: from, To: x, ClusterID: l.Set().ID, Body: b})
	return l.to(from)
}

// to returns x's messages to p.
func (l lone) to(p message.Peer) []message.Body {
	var said []message.Body
	for _, e := range l.Take() {
		if e.From != x || e.ClusterID != l.Set().ID {
			l.t.Fatalf("sent from %v in cluster ID %q", e.From, e.ClusterID)
		}
		if e.To == p {
			said = append(said, e.Body)
		}
	}
	return said
}

// acks sends a heartbeat and reports whether the acknowledgement is OK.
func (l lone) acks(now int64, from message.Peer, h message.Heartbeat) bool {
	l.t.Helper()
	said := l.say(now, from, &h)
	for _, b := range said {
		if a, ok := b.(*message.Ack); ok {
			if a.Sent != h.Sent || a.Set.Version != l.Set().Version || a.Set.ID != l.Set().ID {
				l.t.Fatalf("answered %+v to %+v", a, h)
			}
			return a.OK
		}
	}
	l.t.Fatalf("no answer to %+v but %v", h, said)
	return false
}

// describe prints a message, with the values behind pointers.
func describe(said ...message.Body) string {
	var b strings.Builder
	for _, body := range said {
		fmt.Fprintf(&b, "%+v ", reflect.ValueOf(body).Elem())
	}
	return b.String()
}
