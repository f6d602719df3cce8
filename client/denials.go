package sluice

import (
	"hash/maphash"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicecluster/sluice/client/limit"
)

// counterKey identifies a counter within this client: two hashes of its domain, descriptor and limits, with secret seeds.
type counterKey [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(counter []byte) counterKey {
	return counterKey{maphash.Bytes(seeds[0], counter), maphash.Bytes(seeds[1], counter)}
}

// denial is a decision of a node and its valid time.
type denial struct {
	decision Decision
	amount   int64
	at       time.Time
	lasts    time.Duration
}

// denials is the denial cache. A nil one is empty.
type denials struct {
	byKey *lru.Cache[counterKey, *denial]
}

func newDenials(entries int) *denials {
	if entries == 0 {
		return nil
	}
	byKey, _ := lru.New[counterKey, *denial](entries) // the error is about entries, which the options have checked
	return &denials{byKey}
}

// get returns the denial of a check of at least the denied amount, while it is valid, with its times as of now.
func (m *denials) get(key counterKey, amount int64, now func() time.Time) (d Decision, ok bool) {
	if m == nil {
		return d, false
	}
	x, ok := m.byKey.Get(key)
	if !ok || amount < x.amount {
		return d, false
	}
	gone := now().Sub(x.at)
	if gone < 0 || gone >= x.lasts {
		return d, false
	}
	d = x.decision
	d.Source = limit.SourceDenyCache
	if d.RetryAfter > 0 {
		d.RetryAfter = max(1, d.RetryAfter-gone)
	}
	d.ResetAfter = max(0, d.ResetAfter-gone)
	return d, true
}

// note remembers d, the decision of a check of amount, if it is a denial that stands for a while, from asked on, when the
// check was sent.
func (m *denials) note(key counterKey, amount int64, d *Decision, lasts time.Duration, asked time.Time) {
	if m != nil && !d.Allowed && lasts > 0 {
		m.byKey.Add(key, &denial{*d, amount, asked, lasts})
	}
}

// forget removes the denial of a counter that was refunded, charged or reset.
func (m *denials) forget(key counterKey) {
	if m != nil {
		m.byKey.Remove(key)
	}
}
