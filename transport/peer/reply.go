package peer

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Bits of Reply.flags.
const (
	flagAllowed = 1 << 0
	flagSoft    = 1 << 1
	flagSplit   = 1 << 2
	flagLent    = 1 << 3
	flagLost    = 1 << 4
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
		if r.Decision.Lost {
			flags |= flagLost
		}
		if r.Lent {
			flags |= flagLent
		}
		if r.Denial != nil {
			flags |= flagSplit
			m.Denials = append(m.Denials, denialOf(r.Denial))
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
		m.Granted = append(m.Granted, r.Granted)
		m.Grant = append(m.Grant, r.Grant)
		m.ForNs = append(m.ForNs, int64(r.For))
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
	m.Granted = trim(m.Granted)
	m.Grant = trim(m.Grant)
	m.ForNs = trim(m.ForNs)
}

func denialOf(d *bucket.Decision) *peerv1.Denial {
	return &peerv1.Denial{
		Index: uint32(d.Index), Limit: d.Limit, Remaining: d.Remaining,
		ResetAfterNs: int64(d.ResetAfter), RetryAfterNs: int64(d.RetryAfter), Lost: d.Lost,
	}
}

func readDenial(m *peerv1.Denial) *bucket.Decision {
	return &bucket.Decision{
		Index: uint8(m.Index), Limit: m.Limit, Remaining: m.Remaining,
		ResetAfter: time.Duration(m.ResetAfterNs), RetryAfter: time.Duration(m.RetryAfterNs), Lost: m.Lost,
	}
}

// splits returns how many of these replies have a Denial.
func splits(flags []byte) (n int) {
	for _, f := range flags {
		if f&flagSplit != 0 {
			n++
		}
	}
	return n
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
		{"delay_ns", len(m.DelayNs)}, {"holder", len(m.Holder)}, {"granted", len(m.Granted)},
		{"grant", len(m.Grant)}, {"for_ns", len(m.ForNs)},
	} {
		if c.len != 0 && c.len != n {
			return columnError(seq, c.name, c.len, n)
		}
	}
	if n := splits(m.Flags); n != len(m.Denials) {
		return fmt.Errorf("frame %d: %d denials for %d replies that have one", seq, len(m.Denials), n)
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
	denials := m.Denials
	if len(denials) > 0 {
		denials = denials[splits(m.Flags[:first]):]
	}
	for i := range replies {
		r, j := &replies[i], first+i
		flags := at(m.Flags, j)
		*r = check.Reply{Status: check.Status(m.Status[j]), Holder: sender}
		r.Allowed = flags&flagAllowed != 0
		r.Soft = flags&flagSoft != 0
		r.Decision.Lost = flags&flagLost != 0
		r.Index = at(m.Index, j)
		r.Limit = at(m.Limit, j)
		r.Remaining = at(m.Remaining, j)
		r.ResetAfter = time.Duration(at(m.ResetAfterNs, j))
		r.RetryAfter = time.Duration(at(m.RetryAfterNs, j))
		r.Delay = time.Duration(at(m.DelayNs, j))
		r.Granted = at(m.Granted, j)
		r.Lent = flags&flagLent != 0
		r.Grant = at(m.Grant, j)
		r.For = time.Duration(at(m.ForNs, j))
		if flags&flagSplit != 0 {
			r.Denial, denials = readDenial(denials[0]), denials[1:]
		}
		if h := at(m.Holder, j); h != 0 {
			r.Holder = m.Names[h-1]
		}
	}
}
