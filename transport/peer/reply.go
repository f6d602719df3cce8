package peer

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Bits of Reply.flags.
const (
	flagAllowed = 1 << 0
	flagSoft    = 1 << 1
)

// writeReply puts replies into the empty m, left-out columns included. self is the
// name of the node that answers.
func writeReply(m *peerv1.Reply, self string, replies []check.Reply) {
	for i := range replies {
		r := &replies[i]
		var flags byte
		if r.Allowed {
			flags |= flagAllowed
		}
		if r.Soft {
			flags |= flagSoft
		}
		m.Status = append(m.Status, byte(r.Status))
		m.Flags = append(m.Flags, flags)
		m.Index = append(m.Index, r.Index)
		m.Limit = append(m.Limit, r.Limit)
		m.Remaining = append(m.Remaining, r.Remaining)
		m.ResetAfterNs = append(m.ResetAfterNs, int64(r.ResetAfter))
		m.RetryAfterNs = append(m.RetryAfterNs, int64(r.RetryAfter))
		m.DelayNs = append(m.DelayNs, int64(r.Delay))
		m.Holder = append(m.Holder, holderNumber(m, self, r.Holder))
	}
	// Status stays: its length is how many replies there are.
	m.Flags = trim(m.Flags)
	m.Index = trim(m.Index)
	m.Limit = trim(m.Limit)
	m.Remaining = trim(m.Remaining)
	m.ResetAfterNs = trim(m.ResetAfterNs)
	m.RetryAfterNs = trim(m.RetryAfterNs)
	m.DelayNs = trim(m.DelayNs)
	m.Holder = trim(m.Holder)
}

// holderNumber returns what stands for name in m: 0 for the sender, else 1 + its
// place in m.Names, where it is added if need be. A frame names few holders.
func holderNumber(m *peerv1.Reply, self, name string) uint32 {
	if name == self {
		return 0
	}
	i := slices.Index(m.Names, name)
	if i < 0 {
		i = len(m.Names)
		m.Names = append(m.Names, name)
	}
	return uint32(i) + 1
}

// checkReply reports what is wrong with the form of m as the answer to frame seq of
// n records.
func checkReply(m *peerv1.Reply, seq uint64, n int) error {
	if m.Hello != nil {
		return fmt.Errorf("a second hello")
	}
	if m.Seq != seq {
		return fmt.Errorf("answer to frame %d where %d was due", m.Seq, seq)
	}
	if len(m.Status) != n {
		return columnError(seq, "status", len(m.Status), n)
	}
	for _, c := range []struct {
		name string
		len  int
	}{
		{"flags", len(m.Flags)}, {"index", len(m.Index)}, {"limit", len(m.Limit)}, {"remaining", len(m.Remaining)},
		{"reset_after_ns", len(m.ResetAfterNs)}, {"retry_after_ns", len(m.RetryAfterNs)},
		{"delay_ns", len(m.DelayNs)}, {"holder", len(m.Holder)},
	} {
		if c.len != 0 && c.len != n {
			return columnError(seq, c.name, c.len, n)
		}
	}
	for i, h := range m.Holder {
		if int(h) > len(m.Names) {
			return fmt.Errorf("frame %d, reply %d: holder %d of %d names", seq, i, h, len(m.Names))
		}
	}
	return nil
}

// readReply fills replies from m, beginning at m's reply first. m has passed
// checkReply. sender is the name of the node that answered.
func readReply(m *peerv1.Reply, first int, sender string, replies []check.Reply) {
	for i := range replies {
		r, j := &replies[i], first+i
		flags := at(m.Flags, j)
		*r = check.Reply{Status: check.Status(m.Status[j]), Holder: sender}
		r.Allowed = flags&flagAllowed != 0
		r.Soft = flags&flagSoft != 0
		r.Index = at(m.Index, j)
		r.Limit = at(m.Limit, j)
		r.Remaining = at(m.Remaining, j)
		r.ResetAfter = time.Duration(at(m.ResetAfterNs, j))
		r.RetryAfter = time.Duration(at(m.RetryAfterNs, j))
		r.Delay = time.Duration(at(m.DelayNs, j))
		if h := at(m.Holder, j); h != 0 {
			r.Holder = m.Names[h-1]
		}
	}
}
