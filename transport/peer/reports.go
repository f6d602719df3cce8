package peer

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// flagTransientLine is bit 0 of a Report's flags.
const flagTransientLine = 1

func (w *controlMessageWriter) report(b *message.Report) *peerv1.Report {
	if len(b.Lines) > maxGather {
		w.err = fmt.Errorf("%d lines; want at most %d", len(b.Lines), maxGather)
		return nil
	}
	m := &peerv1.Report{
		Sent:  b.Sent,
		KeyHi: each(b.Lines, func(l *message.Line) uint64 { return l.Key.Hi }),
		KeyLo: each(b.Lines, func(l *message.Line) uint64 { return l.Key.Lo }),
		Ends:  each(b.Lines, func(l *message.Line) int64 { return l.Ends }),
		Sum:   each(b.Lines, func(l *message.Line) int64 { return l.Sum }),
	}
	m.Limits = each(b.Lines, func(l *message.Line) uint32 { return w.limit(l.Limits) })
	m.Flags = trim(each(b.Lines, func(l *message.Line) byte {
		if l.Transient {
			return flagTransientLine
		}
		return 0
	}))
	return m
}

func (w *controlMessageWriter) account(b *message.Account) *peerv1.Account {
	return &peerv1.Account{
		Sent: b.Sent, Clock: b.Clock,
		KeyHi:     each(b.Lines, func(s *message.Standing) uint64 { return s.Key.Hi }),
		KeyLo:     each(b.Lines, func(s *message.Standing) uint64 { return s.Key.Lo }),
		Ends:      each(b.Lines, func(s *message.Standing) int64 { return s.Ends }),
		Known:     each(b.Lines, func(s *message.Standing) int64 { return s.Known }),
		Remaining: each(b.Lines, func(s *message.Standing) int64 { return s.Remaining }),
		Reporters: each(b.Lines, func(s *message.Standing) uint32 { return w.number(s.Reporters) }),
	}
}

// column is one that must have as many values as there are keys, or none.
type column struct {
	name string
	len  int
}

// columns reports whether all have the length that they must, and sets r.err if not.
func (r *controlMessageReader) columns(controlMessage string, hi, lo int, rest ...column) bool {
	if hi != lo {
		r.err = fmt.Errorf("%s: key_hi has %d values and key_lo %d; want as many", controlMessage, hi, lo)
		return false
	}
	for _, c := range rest {
		if c.len != 0 && c.len != lo {
			r.err = fmt.Errorf("%s: column %s has %d values for %d keys; want as many, or none", controlMessage, c.name, c.len, lo)
			return false
		}
	}
	return true
}

// report returns the message that m holds, or nil with r.err set.
func (r *controlMessageReader) report(m *peerv1.Report) *message.Report {
	if !r.columns("report", len(m.KeyHi), len(m.KeyLo), column{"limits", len(m.Limits)},
		column{"ends", len(m.Ends)}, column{"sum", len(m.Sum)}, column{"flags", len(m.Flags)}) {
		return nil
	}
	b := &message.Report{Sent: m.Sent}
	if len(m.KeyLo) > 0 {
		b.Lines = make([]message.Line, len(m.KeyLo))
	}
	for i := range b.Lines {
		id := at(m.Limits, i)
		b.Lines[i] = message.Line{
			Key: bucket.Key{Hi: m.KeyHi[i], Lo: m.KeyLo[i]}, Limits: r.limit(&id), Ends: at(m.Ends, i),
			Sum: at(m.Sum, i), Transient: at(m.Flags, i)&flagTransientLine != 0,
		}
	}
	return b
}

// account is report for an Account.
func (r *controlMessageReader) account(m *peerv1.Account) *message.Account {
	if !r.columns("account", len(m.KeyHi), len(m.KeyLo), column{"ends", len(m.Ends)},
		column{"known", len(m.Known)}, column{"remaining", len(m.Remaining)}, column{"reporters", len(m.Reporters)}) {
		return nil
	}
	b := &message.Account{Sent: m.Sent, Clock: m.Clock}
	if len(m.KeyLo) > 0 {
		b.Lines = make([]message.Standing, len(m.KeyLo))
	}
	for i := range b.Lines {
		b.Lines[i] = message.Standing{
			Key: bucket.Key{Hi: m.KeyHi[i], Lo: m.KeyLo[i]}, Ends: at(m.Ends, i),
			Known: at(m.Known, i), Remaining: at(m.Remaining, i), Reporters: r.number(at(m.Reporters, i)),
		}
	}
	return b
}

// The bits of a KeyFacts' flags.
const (
	flagHolds = 1 << iota
	flagCopy
	flagWhole
	flagCounted
	flagLeased
)

func (w *controlMessageWriter) facts(b *message.Facts) *peerv1.Facts {
	n := &b.Node
	h := n.Holdings
	m := &peerv1.Facts{
		Id: b.ID, Rules: w.text(n.Rules), MayDecide: n.MayDecide, Reason: w.text(n.Reason),
		All: countsOf(n.All), LatencyCounts: n.Latency.Counts, LatencySumNs: uint64(n.Latency.Sum),
		LatencyBoundsNs: each(n.Latency.Bounds, func(d *time.Duration) uint64 { return uint64(*d) }),
		Slot:            n.Slot, History: flat(n.History),
	}
	for _, v := range []int{h.Holding, h.Unprotected, h.HandingOver, h.Copies, h.Claims, h.Divergent, h.BelowReplicas, h.Lost} {
		m.Holdings = append(m.Holdings, w.number(v))
	}
	m.ByRule = each(n.ByRule, func(r *facts.Rule) *peerv1.RuleFacts {
		return &peerv1.RuleFacts{Domain: w.text(r.Domain), Name: w.text(r.Name), Counts: countsOf(r.Counts), History: flat(r.History)}
	})
	return m
}

func countsOf(c facts.Counts) *peerv1.Counts {
	if c == (facts.Counts{}) {
		return nil
	}
	return &peerv1.Counts{Allowed: c.Allowed, Denied: c.Denied, Shadowed: c.Shadowed, Failed: c.Failed}
}

// flat returns the counts of slots in a row.
func flat(list []facts.Counts) []uint64 {
	if len(list) == 0 {
		return nil
	}
	out := make([]uint64, 0, 4*len(list))
	for _, c := range list {
		out = append(out, c.Allowed, c.Denied, c.Shadowed, c.Failed)
	}
	return out
}

func (w *controlMessageWriter) keyFacts(b *message.KeyFacts) *peerv1.KeyFacts {
	k := &b.Key
	m := &peerv1.KeyFacts{
		Id: b.ID, Partition: w.number(k.Partition), Gen: k.Gen, Grants: w.number(k.Grants), Granted: k.Granted,
		LeaseLeft: k.LeaseLeft, DeniesNs: int64(k.Denies),
		Limit:        each(k.Limits, func(l *facts.Limit) int64 { return l.Limit }),
		Spent:        each(k.Limits, func(l *facts.Limit) int64 { return l.Spent }),
		Remaining:    each(k.Limits, func(l *facts.Limit) int64 { return l.Remaining }),
		ResetAfterNs: each(k.Limits, func(l *facts.Limit) int64 { return int64(l.ResetAfter) }),
	}
	for i, set := range []bool{k.Holds, k.Copy, k.Whole, k.Counted, k.Leased} {
		if set {
			m.Flags |= 1 << i
		}
	}
	return m
}

// facts returns the message that m holds, or nil with r.err set.
func (r *controlMessageReader) facts(m *peerv1.Facts) *message.Facts {
	b := &message.Facts{ID: m.Id}
	n := &b.Node
	n.Rules, n.MayDecide, n.Reason = r.text(m.Rules), m.MayDecide, r.text(m.Reason)
	n.All = countsFrom(m.All)
	n.Latency = facts.Latency{
		Bounds: each(m.LatencyBoundsNs, func(d *uint64) time.Duration { return time.Duration(*d) }),
		Counts: m.LatencyCounts, Sum: time.Duration(m.LatencySumNs),
	}
	var h [8]int
	for i := range min(len(h), len(m.Holdings)) {
		h[i] = r.number(m.Holdings[i])
	}
	n.Holdings = facts.Holdings{Holding: h[0], Unprotected: h[1], HandingOver: h[2], Copies: h[3], Claims: h[4], Divergent: h[5], BelowReplicas: h[6], Lost: h[7]}
	n.Slot, n.History = m.Slot, r.slots(m.History)
	if len(m.ByRule) > facts.MaxRules {
		r.err = fmt.Errorf("facts: %d rules; want at most %d", len(m.ByRule), facts.MaxRules)
		return nil
	}
	n.ByRule = each(m.ByRule, func(f **peerv1.RuleFacts) facts.Rule {
		return facts.Rule{
			Domain: r.text((*f).Domain), Name: r.text((*f).Name), Counts: countsFrom((*f).Counts), History: r.slots((*f).History),
		}
	})
	return b
}

func countsFrom(m *peerv1.Counts) facts.Counts {
	return facts.Counts{Allowed: m.GetAllowed(), Denied: m.GetDenied(), Shadowed: m.GetShadowed(), Failed: m.GetFailed()}
}

// slots is flat the other way round.
func (r *controlMessageReader) slots(list []uint64) []facts.Counts {
	if len(list)%4 != 0 || len(list)/4 > facts.Slots {
		r.err = fmt.Errorf("facts: a history of %d numbers; want four for each slot, at most %d slots", len(list), facts.Slots)
		return nil
	}
	if len(list) == 0 {
		return nil
	}
	out := make([]facts.Counts, len(list)/4)
	for i := range out {
		c := list[4*i:]
		out[i] = facts.Counts{Allowed: c[0], Denied: c[1], Shadowed: c[2], Failed: c[3]}
	}
	return out
}

// keyFacts is facts for a KeyFacts.
func (r *controlMessageReader) keyFacts(m *peerv1.KeyFacts) *message.KeyFacts {
	k := len(m.Limit)
	if len(m.Spent) != k || len(m.Remaining) != k || len(m.ResetAfterNs) != k {
		r.err = fmt.Errorf("key facts: columns of %d, %d, %d and %d values; want as many", k, len(m.Spent), len(m.Remaining), len(m.ResetAfterNs))
		return nil
	}
	b := &message.KeyFacts{ID: m.Id, Key: facts.Key{
		Partition: r.number(m.Partition), Gen: m.Gen, Grants: r.number(m.Grants), Granted: m.Granted,
		LeaseLeft: m.LeaseLeft, Denies: time.Duration(m.DeniesNs),
		Holds: m.Flags&flagHolds != 0, Copy: m.Flags&flagCopy != 0, Whole: m.Flags&flagWhole != 0,
		Counted: m.Flags&flagCounted != 0, Leased: m.Flags&flagLeased != 0,
	}}
	for i := range m.Limit {
		b.Key.Limits = append(b.Key.Limits, facts.Limit{
			Limit: m.Limit[i], Spent: m.Spent[i], Remaining: m.Remaining[i], ResetAfter: time.Duration(m.ResetAfterNs[i]),
		})
	}
	return b
}
