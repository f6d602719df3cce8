package load

import (
	"fmt"
	"slices"
)

// Source says who decided a check, as its door tells it.
type Source uint8

// Sources of a decision.
const (
	// Untold: the door does not say.
	Untold Source = iota
	// Held: the node that was asked holds the key.
	Held
	// Forwarded: another node holds the key.
	Forwarded
	// Share, Closed and Open: no holder answered; on_failure or on_partition decided.
	Share
	Closed
	Open
	// Unruled: nothing limits the check.
	Unruled
	// Lease: another node holds the key, and has lent units of it.
	Lease
	// Eventual: the node that was asked decided on its share.
	Eventual
	// DenyCache: the SDK remembered a denial.
	DenyCache

	sources
)

var sourceNames = [sources]string{
	"untold", "held", "forwarded", "share", "closed", "open", "unruled", "lease", "eventual", "deny_cache",
}

// String is the source as the APIs spell it, for example "forwarded".
func (s Source) String() string {
	if s < sources {
		return sourceNames[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// SourceNamed returns the source of that name; Untold, the first, for one that is not known.
func SourceNamed(name string) Source { return Source(max(0, slices.Index(sourceNames[:], name))) }

// Decided counts checks that have a decision.
type Decided struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
}

// Tally counts checks by what became of them. The zero Tally is ready.
type Tally struct {
	By [sources]Decided
	// Failed have no decision.
	Failed int64
	// FirstError is why the first of them has none.
	FirstError error
}

// Count adds a decision.
func (t *Tally) Count(s Source, allowed bool) {
	if s >= sources {
		s = Untold
	}
	if allowed {
		t.By[s].Allowed++
	} else {
		t.By[s].Denied++
	}
}

// Fail adds n checks that have no decision because of err.
func (t *Tally) Fail(n int64, err error) {
	t.Failed += n
	if t.FirstError == nil {
		t.FirstError = err
	}
}

// Add adds o.
func (t *Tally) Add(o *Tally) {
	for s := range t.By {
		t.By[s].Allowed += o.By[s].Allowed
		t.By[s].Denied += o.By[s].Denied
	}
	if o.Failed > 0 {
		t.Fail(o.Failed, o.FirstError)
	}
}

// Decided sums the decisions of all sources.
func (t *Tally) Decided() (sum Decided) {
	for _, d := range t.By {
		sum.Allowed += d.Allowed
		sum.Denied += d.Denied
	}
	return sum
}
