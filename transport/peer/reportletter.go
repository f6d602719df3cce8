package peer

import (
	"fmt"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// flagTransientLine is bit 0 of a Report's flags.
const flagTransientLine = 1

func (w *letterWriter) report(b *message.Report) *peerv1.Report {
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

func (w *letterWriter) account(b *message.Account) *peerv1.Account {
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
func (r *letterReader) columns(letter string, hi, lo int, rest ...column) bool {
	if hi != lo {
		r.err = fmt.Errorf("%s: key_hi has %d values and key_lo %d; want as many", letter, hi, lo)
		return false
	}
	for _, c := range rest {
		if c.len != 0 && c.len != lo {
			r.err = fmt.Errorf("%s: column %s has %d values for %d keys; want as many, or none", letter, c.name, c.len, lo)
			return false
		}
	}
	return true
}

// report returns the message that m holds, or nil with r.err set.
func (r *letterReader) report(m *peerv1.Report) *message.Report {
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
func (r *letterReader) account(m *peerv1.Account) *message.Account {
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
