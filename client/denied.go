package client

import (
	"hash/maphash"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// counterKey names a counter within this client: two hashes of its domain, descriptor and limits, with
// seeds that nobody else knows.
type counterKey [2]uint64

// seeds of counterKeys.
var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(counter []byte) counterKey {
	return counterKey{maphash.Bytes(seeds[0], counter), maphash.Bytes(seeds[1], counter)}
}

// denial is one that a node has given, and for how long it stands.
type denial struct {
	decision Decision
	cost     int64
	at       time.Time
}

// denials remembers them. A nil one remembers nothing.
type denials struct {
	byKey *lru.Cache[counterKey, *denial]
}

func newDenials(entries int) *denials {
	if entries == 0 {
		return nil
	}
	// The only error is about entries, which the options have checked.
	byKey, err := lru.New[counterKey, *denial](entries)
	if err != nil {
		return nil
	}
	return &denials{byKey}
}

// get answers a check of cost from memory: more than what was denied is denied too, as long as the
// node has said. What it says of the time is as of now.
func (m *denials) get(key counterKey, cost int64, now func() time.Time) (d Decision, ok bool) {
	if m == nil {
		return d, false
	}
	x, ok := m.byKey.Get(key)
	if !ok || cost < x.cost {
		return d, false
	}
	gone := now().Sub(x.at)
	if gone < 0 || gone >= x.decision.deniedFor {
		return d, false
	}
	d = x.decision
	d.Source = SourceDenyCache
	d.deniedFor -= gone
	if d.RetryAfter != Never {
		d.RetryAfter -= gone
	}
	d.ResetAfter = max(0, d.ResetAfter-gone)
	return d, true
}

// note remembers d, the answer to a check of cost, if it is a denial that stands for a while. It was
// asked at asked: what has passed since is time that the denial may not stand any more.
func (m *denials) note(key counterKey, cost int64, d *Decision, asked time.Time) {
	if m == nil || d.Allowed || d.deniedFor <= 0 {
		return
	}
	m.byKey.Add(key, &denial{*d, cost, asked})
}

// forget drops what is known of a counter that was given something back, or was reset.
func (m *denials) forget(key counterKey) {
	if m != nil {
		m.byKey.Remove(key)
	}
}
