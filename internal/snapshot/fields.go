package snapshot

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

func appendInt(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(n)) }

func appendText(b []byte, s string) []byte { return append(appendInt(b, len(s)), s...) }

func appendTime(b []byte, t time.Time) []byte { return binary.AppendVarint(b, t.UnixNano()) }

func appendMark(b []byte, m message.Mark) []byte {
	b = binary.AppendUvarint(b, m.Epoch.Gen)
	b = appendText(b, m.Epoch.Boot)
	return binary.AppendUvarint(b, m.Seq)
}

// fields takes a payload apart, field by field. Once one does not fit, wrong is true and
// all that follow are zero.
type fields struct {
	b     []byte
	wrong bool
}

func (f *fields) uint64() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.fail()
		return 0
	}
	f.b = f.b[n:]
	return v
}

// int reads a number from 0 to most.
func (f *fields) int(most int) int {
	v := f.uint64()
	if v > uint64(most) {
		f.fail()
		return 0
	}
	return int(v)
}

// count reads how many of something follow, of which each takes at least a byte.
func (f *fields) count() int { return f.int(len(f.b)) }

func (f *fields) bytes(n int) []byte {
	if n > len(f.b) {
		f.fail()
		n = 0
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

func (f *fields) text() string { return string(f.bytes(f.count())) }

func (f *fields) time() time.Time {
	v, n := binary.Varint(f.b)
	if n <= 0 {
		f.fail()
		return time.Time{}
	}
	f.b = f.b[n:]
	return time.Unix(0, v)
}

func (f *fields) mark() (m message.Mark) {
	m.Epoch.Gen = f.uint64()
	m.Epoch.Boot = f.text()
	m.Seq = f.uint64()
	return m
}

func (f *fields) fail() { f.b, f.wrong = nil, true }

// done reports whether every field fitted and nothing is left.
func (f *fields) done() bool { return !f.wrong && len(f.b) == 0 }

// storable reports whether t survives being written: about the years 1678 to 2262.
func storable(t time.Time) bool {
	return !t.Before(time.Unix(0, math.MinInt64)) && !t.After(time.Unix(0, math.MaxInt64))
}
