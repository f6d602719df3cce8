package local

import (
	"context"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/rules"
)

// CheckAll decides 1 to 10,000 checks and reads as one: all are allowed, or nothing is spent. It charges them one by one, and
// gives the charges back when one of them is denied; checks of others may be denied for that moment.
func (l *Limiter) CheckAll(_ context.Context, checks ...limit.Check) (limit.Batch, error) {
	if err := validateCount(len(checks)); err != nil {
		return limit.Batch{}, err
	}
	set, list, failed := l.set.Load(), make([]matched, len(checks)), false
	for i := range checks {
		err := validateAtomic(checks[i].Verb)
		if err == nil {
			err = l.match(set, &checks[i], &list[i])
		}
		if err != nil {
			return limit.Batch{}, at(i, err)
		}
		failed = failed || list[i].unmatched == rules.UnmatchedDeny && list[i].Verb == bucket.Check
	}
	if now := l.now(); failed {
		l.readAll(now, list)
	} else {
		failed = l.decideAll(now, list)
	}
	decisions := make([]limit.Decision, len(list))
	for i := range list {
		list[i].finish(failed)
		decisions[i] = list[i].decision()
	}
	return limit.NewBatch(decisions), nil
}

// validateAtomic returns why a verb may not be part of a batch, as nodes have it.
func validateAtomic(v limit.Verb) error {
	if v == limit.VerbCharge || v == limit.VerbRefund || v == limit.VerbReset {
		return limit.Invalid("verb", v.String()+" cannot be denied or taken back, so it cannot be part of CheckAll; use Check or CheckEach")
	}
	return nil
}

// readAll reads what a batch that has failed would have got.
func (l *Limiter) readAll(now int64, list []matched) {
	for i := range list {
		m := &list[i]
		verb := m.Verb
		m.Verb = bucket.Read
		l.decide(now, m)
		m.Verb = verb
	}
}

// maxRounds bounds how often a batch is decided again because pools may admit what limits have denied: as on nodes.
const maxRounds = 3

// decideAll decides a list as one, and reports whether it failed. A denial by a rule in shadow mode fails no batch.
func (l *Limiter) decideAll(now int64, list []matched) (failed bool) {
	answers, receipts := make([]bucket.Decision, len(list)), make([]bucket.Receipt, len(list))
	for round := 0; ; round++ {
		failed = false
		for i := range list {
			m := &list[i]
			if m.Limits == nil {
				continue
			}
			answers[i], _ = l.table.DoHeld(now, &m.Request, &receipts[i])
			if !m.pooled {
				m.Decision = answers[i]
			}
			failed = failed || m.fails(&answers[i])
		}
		if !failed {
			break
		}
		for i := range receipts {
			l.table.GiveBack(now, &receipts[i])
		}
		if round == maxRounds || !l.turnToPools(list, answers) {
			break
		}
	}
	var retry time.Duration // until what failed may be admitted
	for i := range list {
		switch m := &list[i]; {
		case m.pooled && (!failed || m.fails(&answers[i])):
			m.grant(&answers[i])
		case m.Verb == bucket.Read || m.shadow():
			l.askPool(now, m)
		}
		if m := &list[i]; m.fails(&answers[i]) {
			retry = max(retry, m.RetryAfter)
		}
	}
	for i := range list {
		if m := &list[i]; failed && m.Limits != nil && m.Verb == bucket.Check && answers[i].Allowed && !m.shadow() {
			m.givenBack, m.RetryAfter = true, 0
			if retry != bucket.Never {
				m.RetryAfter = retry
			}
		}
	}
	return failed
}

// fails reports whether d, the answer to m, fails its batch.
func (m *matched) fails(d *bucket.Decision) bool {
	return m.Limits != nil && m.Verb == bucket.Check && !d.Allowed && !m.shadow()
}

// turnToPools turns the requests whose answers failed a batch to their rules' pools. If one has no pool, or the pool has
// denied it, turnToPools returns false and changes nothing.
func (l *Limiter) turnToPools(list []matched, answers []bucket.Decision) bool {
	for i := range list {
		if m := &list[i]; m.fails(&answers[i]) && (m.pooled || !m.hasPool()) {
			return false
		}
	}
	for i := range list {
		if m := &list[i]; m.fails(&answers[i]) {
			m.Request, m.pooled = l.poolRequest(m), true
		}
	}
	return true
}
