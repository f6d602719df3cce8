package message

import (
	"encoding/binary"
	"errors"
	"slices"
)

// Parts are the parts of a transfer batch. An owner sends some for each of its partitions many times a second, so they have a form of
// their own, which takes a twentieth of the time of CBOR's. Numbers are varints (encoding/binary):
//
//	number of boot ids, and each: length, bytes
//	number of parts, and each: length (2 bytes, little endian), and
//	    flags, Partition, Kind, Epoch, InitialSync, Seq, Counters, Bytes
//	    as the flags say: Start, Next, Sum, Loss, InSync, Owned and Before of Loss
//	    what a later version adds, which is skipped
//
// An epoch is 1 + the index of its boot id, or 0 without one, and its generation.
type Parts []Part

// The flags of a part.
const (
	partBegins = 1 << iota
	partEnds
	partStart
	partNext
	partSum
	partLoss
	partOwned
)

const (
	usualPart = 32 // bytes of most parts, at most
	leastPart = 11 // bytes of the shortest
	maxParts  = 1 << 16
)

// partWriter has the boot ids of a batch.
type partWriter struct{ boots []string }

func (w *partWriter) epoch(b []byte, e *Epoch) []byte {
	at := 0
	if e.Boot != "" {
		if at = slices.Index(w.boots, e.Boot) + 1; at == 0 {
			w.boots = append(w.boots, e.Boot)
			at = len(w.boots)
		}
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(at)), e.Gen)
}

func (w *partWriter) part(b []byte, p *Part) []byte {
	at := len(b)
	flags := uint64(0)
	for i, is := range [...]bool{p.Begin, p.End, p.Start != Mark{}, p.Next != Epoch{}, p.Sum != 0, p.Loss != Loss{}, p.Loss.InSync != InSync{} || p.Loss.Owned != Epoch{} || p.Loss.Before != [4]Epoch{}} {
		if is {
			flags |= 1 << i
		}
	}
	b = append(b, 0, 0)
	b = binary.AppendUvarint(b, flags)
	b = binary.AppendUvarint(b, uint64(p.Partition))
	b = binary.AppendUvarint(b, uint64(p.Kind))
	b = w.epoch(b, &p.Epoch)
	b = binary.AppendUvarint(b, p.InitialSync)
	b = binary.AppendUvarint(b, p.Seq)
	b = binary.AppendUvarint(b, uint64(p.Counters))
	b = binary.AppendUvarint(b, uint64(p.Bytes))
	if flags&partStart != 0 {
		b = binary.AppendUvarint(w.epoch(b, &p.Start.Epoch), p.Start.Seq)
	}
	if flags&partNext != 0 {
		b = w.epoch(b, &p.Next)
	}
	if flags&partSum != 0 {
		b = binary.AppendUvarint(b, p.Sum)
	}
	if flags&partLoss != 0 {
		b = w.epoch(w.epoch(w.epoch(b, &p.Loss.Last), &p.Loss.LastCertain), &p.Loss.Complete)
		b = binary.AppendUvarint(b, uint64(p.Loss.Age))
	}
	if flags&partOwned != 0 {
		b = w.epoch(b, &p.Loss.Owned)
		for i := range p.Loss.Before {
			b = w.epoch(b, &p.Loss.Before[i])
		}
		b = binary.AppendUvarint(b, p.Loss.InSync.Number)
		for _, n := range p.Loss.InSync.Syncs {
			b = binary.AppendUvarint(b, n)
		}
	}
	binary.LittleEndian.PutUint16(b[at:], uint16(len(b)-at-2))
	return b
}

// MarshalBinary encodes the parts.
func (list Parts) MarshalBinary() ([]byte, error) {
	var w partWriter
	b := binary.AppendUvarint(make([]byte, 0, 8+usualPart*len(list)), uint64(len(list)))
	for i := range list {
		b = w.part(b, &list[i])
	}
	head := binary.AppendUvarint(nil, uint64(len(w.boots)))
	for _, s := range w.boots {
		head = append(binary.AppendUvarint(head, uint64(len(s))), s...)
	}
	return slices.Concat(head, b), nil
}

var errParts = errors.New("parts: they end too early, or a number is too large")

// partReader reads what a partWriter has written. After an error everything reads as 0.
type partReader struct {
	boots []string
	rest  []byte
	err   error
}

func (r *partReader) number() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.rest, r.err = nil, errParts
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// bytes reads n bytes.
func (r *partReader) bytes(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.rest, r.err = nil, errParts
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *partReader) epoch() (e Epoch) {
	switch at := r.number(); {
	case at > uint64(len(r.boots)):
		r.rest, r.err = nil, errParts
	case at > 0:
		e.Boot = r.boots[at-1]
	}
	e.Gen = r.number()
	return e
}

func (r *partReader) mark() (m Mark) {
	m.Epoch = r.epoch()
	m.Seq = r.number()
	return m
}

func (r *partReader) part(p *Part) {
	flags := r.number()
	p.Begin, p.End = flags&partBegins != 0, flags&partEnds != 0
	p.Partition = int(r.number())
	p.Kind = Kind(min(r.number(), 255))
	p.Epoch = r.epoch()
	p.InitialSync = r.number()
	p.Seq = r.number()
	p.Counters = int(r.number())
	p.Bytes = int(r.number())
	if flags&partStart != 0 {
		p.Start = r.mark()
	}
	if flags&partNext != 0 {
		p.Next = r.epoch()
	}
	if flags&partSum != 0 {
		p.Sum = r.number()
	}
	if flags&partLoss != 0 {
		p.Loss = Loss{Last: r.epoch(), LastCertain: r.epoch(), Complete: r.epoch(), Age: int64(r.number())}
	}
	if flags&partOwned != 0 {
		p.Loss.Owned = r.epoch()
		for i := range p.Loss.Before {
			p.Loss.Before[i] = r.epoch()
		}
		p.Loss.InSync.Number = r.number()
		for i := range p.Loss.InSync.Syncs {
			p.Loss.InSync.Syncs[i] = r.number()
		}
	}
}

// UnmarshalBinary decodes parts. What they have shares no memory with data.
func (list *Parts) UnmarshalBinary(data []byte) error {
	r := partReader{rest: data}
	boots := r.number()
	if boots > maxParts {
		return errParts
	}
	for ; boots > 0 && r.err == nil; boots-- {
		r.boots = append(r.boots, string(r.bytes(r.number())))
	}
	n := r.number()
	if n > uint64(len(r.rest)/leastPart) || n > maxParts {
		return errParts
	}
	*list = slices.Grow((*list)[:0], int(n))[:n]
	clear(*list)
	for i := range *list {
		size := r.bytes(2)
		if r.err != nil {
			return r.err
		}
		one := partReader{boots: r.boots, rest: r.bytes(uint64(binary.LittleEndian.Uint16(size)))}
		if one.part(&(*list)[i]); one.err != nil || r.err != nil {
			return errParts
		}
	}
	if r.err == nil && len(r.rest) > 0 {
		return errors.New("parts: bytes follow the last")
	}
	return r.err
}
