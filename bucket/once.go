package bucket

import "time"

// OnceFor is the time for which a table remembers that it has applied a Request with Once.
const OnceFor = 10 * time.Minute

// onceLimit is that of the counters that remember a Once, next to the counter of the request: they are replicated, handed over and
// restored with it. The first charge leaves a unit, later ones leave none; and a counter that is half spent may be evicted.
var onceLimit = Limit{Algorithm: FixedWindow, Align: AlignFirstHit, Count: 2, Period: OnceFor}

// repeatedLocked remembers r.Once, and reports whether it was remembered before, and whether the shard has grown.
func (sh *shard) repeatedLocked(now int64, r *Request) (repeated, grown bool) {
	mark := Request{Key: r.Key, Limits: r.Limits.once(), Unreplicated: r.Unreplicated}
	mark.Key.Hi ^= r.Once // the shard depends on Lo only
	var d Decision
	o := sh.decideLocked(sh.atLocked(now), &mark, Charge, 1, nil, &d)
	sh.followLocked(now, mark.Key, o, r.Unreplicated)
	return d.Remaining == 0, o.grown > 0
}

// once returns onceLimit in the domain of l.
func (l *Limits) once() *Limits {
	if o := l.marks.Load(); o != nil {
		return o
	}
	o, err := NewLimitsIn(l.domain, onceLimit)
	if err != nil {
		panic("bucket: onceLimit is invalid: " + err.Error())
	}
	l.marks.CompareAndSwap(nil, o)
	return l.marks.Load()
}
