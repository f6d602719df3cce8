package wire

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Shape says what the messages of a type take when they are decoded, so that it is known before
// anything is allocated.
type Shape struct {
	each int64 // bytes of one message
	// most is how many of a list are decoded, 0 for all of them. own: lists have the messages
	// themselves.
	most int
	own  bool
	// flat: they have no lists and no messages, so that what they take beside each is in their
	// bytes.
	flat bool

	fields map[protowire.Number]*shapeField
	low    [16]*shapeField // of fields, those with low numbers
}

type shapeField struct {
	name string
	list bool
	// packed: it is a list of numbers in one piece.
	packed bool
	of     *Shape // of messages, else nil
}

const (
	// pointer is what a message has in a list of messages, and stringHead a text in a list of
	// texts: lists grow by reallocation, so some of it is spare.
	pointer    = 16
	stringHead = 24
	number     = 16 // of a list of numbers
	// deepest is the deepest message that is looked into. What is deeper counts as text.
	deepest = 16
)

// Own is what messages of a type take if they are decoded into another type than the generated one:
// Bytes each, in lists without pointers, of which those beyond the first Most are skipped. Most 0
// means that none is.
type Own struct {
	Bytes int64
	Most  int
}

// ShapeOf returns the Shape of messages of type d. own has those that are not decoded into the
// generated type.
func ShapeOf(d protoreflect.MessageDescriptor, own map[protoreflect.FullName]Own) *Shape {
	return shapeOf(d, own, map[protoreflect.FullName]*Shape{})
}

func shapeOf(d protoreflect.MessageDescriptor, own map[protoreflect.FullName]Own, known map[protoreflect.FullName]*Shape) *Shape {
	if s := known[d.FullName()]; s != nil {
		return s
	}
	s := &Shape{fields: map[protowire.Number]*shapeField{}, flat: true}
	known[d.FullName()] = s
	if o, ok := own[d.FullName()]; ok {
		s.each, s.most, s.own = o.Bytes, o.Most, true
	} else {
		s.each = sizeOf(d)
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		one := &shapeField{name: f.TextName(), list: f.IsList() || f.IsMap(), packed: f.IsList() && f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind}
		if f.Kind() == protoreflect.MessageKind {
			one.of = shapeOf(f.Message(), own, known)
		}
		s.flat = s.flat && one.of == nil && !one.list
		s.fields[f.Number()] = one
		if int(f.Number()) < len(s.low) {
			s.low[f.Number()] = one
		}
	}
	return s
}

// sizeOf is the size of a message of a generated type.
func sizeOf(d protoreflect.MessageDescriptor) int64 {
	const unknown = 512 // a message of a type that is not generated has maps
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return unknown
	}
	t := reflect.TypeOf(m.Zero().Interface())
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return unknown
	}
	return int64(t.Elem().Size()) + pointer
}

// within returns what a flat message of n bytes takes besides: its texts, and in generated types
// unknown fields.
func (s *Shape) within(n int) int64 {
	if s.own {
		return int64(n)
	}
	return 2 * int64(n)
}

// more returns by how much a list grows with its message n: at first it doubles.
func (s *Shape) more(n int) int64 {
	const doubles = 256
	switch {
	case !s.own || n > doubles:
		return s.each
	case n == 1:
		return s.each
	case (n-1)&(n-2) == 0: // it has a power of two
		return s.each * int64(n-1)
	}
	return 0
}

func (s *Shape) field(n protowire.Number) *shapeField {
	if n >= 0 && int(n) < len(s.low) {
		return s.low[n]
	}
	return s.fields[n]
}

// Shaped is a Request that has a Shape.
type Shaped interface {
	Request
	WireShape() *Shape
}

var shapes sync.Map // of generated types, by descriptor

// shapeFor returns the Shape of what a codec decodes into, nil if it is not known.
func shapeFor(v any) *Shape {
	switch v := v.(type) {
	case Shaped:
		return v.WireShape()
	case proto.Message:
		d := v.ProtoReflect().Descriptor()
		if s, ok := shapes.Load(d); ok {
			return s.(*Shape)
		}
		s, _ := shapes.LoadOrStore(d, ShapeOf(d, nil))
		return s.(*Shape)
	}
	return nil
}

// Cost returns what data takes when it is decoded as s says, or more than most and the field that
// exceeds it. It judges nothing: of malformed data it counts what comes before. It allocates
// nothing but the field.
func (s *Shape) Cost(data mem.BufferSlice, most int64) (cost int64, field string) {
	if len(data) == 1 { // most messages
		whole := data[0].ReadOnlyData()
		if cost, _ := s.costOf(whole, int64(len(whole))+s.each, most, 1); cost <= most {
			return cost, ""
		}
	}
	return s.costOfPieces(data, most)
}

// costOf adds what the fields of data take to cost, until that exceeds most. ok is false if data is
// malformed.
func (s *Shape) costOf(data []byte, cost, most int64, depth int) (_ int64, ok bool) {
	last, count := (*shapeField)(nil), 0
	for len(data) > 0 && cost <= most {
		tag, n := uint64(data[0]), 1
		if tag >= 0x80 {
			if tag, n = binary.Uvarint(data); n <= 0 {
				return cost, false
			}
		}
		data = data[n:]
		f := s.field(protowire.Number(tag >> 3))
		var value []byte
		switch protowire.Type(tag & 7) {
		case protowire.BytesType:
			if len(data) == 0 {
				return cost, false
			}
			length, n := uint64(data[0]), 1
			if length >= 0x80 {
				length, n = binary.Uvarint(data)
			}
			if n <= 0 || length > uint64(len(data)-n) {
				return cost, false
			}
			value, data = data[n:n+int(length)], data[n+int(length):]
			if f != nil && f.of != nil && depth < deepest {
				if f != last {
					last, count = f, 0
				}
				if count++; f.of.most > 0 && count > f.of.most {
					continue
				}
				if cost += f.of.more(count); f.of.flat {
					cost += f.of.within(len(value))
				} else if cost, ok = f.of.costOf(value, cost, most, depth+1); !ok {
					return cost, false
				}
				continue
			}
			cost += f.bytes(len(value))
			continue
		case protowire.VarintType:
			n := 0
			for n < len(data) && data[n] >= 0x80 {
				n++
			}
			if n >= len(data) || n >= binary.MaxVarintLen64 {
				return cost, false
			}
			data = data[n+1:]
		case protowire.Fixed32Type, protowire.Fixed64Type:
			size := 4
			if protowire.Type(tag&7) == protowire.Fixed64Type {
				size = 8
			}
			if len(data) < size {
				return cost, false
			}
			data = data[size:]
		case protowire.StartGroupType, protowire.EndGroupType: // its fields count as those around it
		default:
			return cost, false
		}
		cost += f.number()
	}
	return cost, true
}

// bytes is what a value of n bytes takes. f may be nil.
func (f *shapeField) bytes(n int) int64 {
	switch {
	case f == nil:
		return 2 * int64(n+8) // generated types keep unknown fields
	case f.of != nil: // too deep
		return f.of.each * int64(n/2+1)
	case f.packed:
		return number * int64(n)
	case f.list:
		return stringHead + int64(n)
	}
	return int64(n)
}

// number is what a number takes. f may be nil.
func (f *shapeField) number() int64 {
	switch {
	case f == nil:
		return 2 * 8
	case f.list:
		return number
	}
	return 0
}

// costOfPieces is Cost of a message that comes in pieces, or takes too much.
func (s *Shape) costOfPieces(data mem.BufferSlice, most int64) (cost int64, field string) {
	w := walk{buffers: data, left: data.Len()}
	type level struct {
		of    *Shape
		end   int // what is left behind it
		num   protowire.Number
		index int
		count int // of the last field of messages
		last  protowire.Number
	}
	var levels [deepest]level
	levels[0] = level{of: s}
	depth := 0
	cost = int64(w.left) + s.each // a copy of the message in one piece
	for {
		for depth > 0 && w.left <= levels[depth].end {
			depth--
		}
		if w.left <= 0 || w.bad {
			return cost, ""
		}
		at := &levels[depth]
		tag := w.varint()
		num, typ := protowire.Number(tag>>3), protowire.Type(tag&7)
		f := at.of.field(num)
		n := 0
		switch typ {
		case protowire.VarintType:
			w.varint()
		case protowire.Fixed32Type:
			w.skip(4)
		case protowire.Fixed64Type:
			w.skip(8)
		case protowire.BytesType:
			length := w.varint()
			if length > uint64(w.left-at.end) {
				return cost, ""
			}
			n = int(length)
		case protowire.StartGroupType, protowire.EndGroupType: // its fields count as those around it
		default:
			return cost, ""
		}
		if w.bad {
			return cost, ""
		}
		switch {
		case typ != protowire.BytesType:
			cost += f.number()
		case f != nil && f.of != nil && depth+1 < deepest:
			if at.last != num {
				at.last, at.count = num, 0
			}
			at.count++
			if f.of.most > 0 && at.count > f.of.most {
				w.skip(n)
				break
			}
			if cost += f.of.more(at.count); f.of.flat {
				cost += f.of.within(n)
				w.skip(n)
				if cost > most {
					levels[depth+1] = level{num: num, index: at.count - 1}
					depth++
				}
				break
			}
			levels[depth+1] = level{of: f.of, end: w.left - n, num: num, index: at.count - 1}
			depth++
		default:
			cost += f.bytes(n)
			w.skip(n)
		}
		if cost > most {
			var path strings.Builder
			of := s
			for i := 1; i <= depth; i++ {
				if i > 1 {
					path.WriteByte('.')
				}
				f := of.field(levels[i].num)
				path.WriteString(f.name)
				if f.list {
					fmt.Fprintf(&path, "[%d]", levels[i].index)
				}
				of = f.of
			}
			return cost, path.String()
		}
	}
}

// walk reads a message that is in several pieces.
type walk struct {
	buffers mem.BufferSlice
	piece   []byte
	left    int // of the whole
	bad     bool
}

// next makes the piece one that is not empty, unless all were read.
func (w *walk) next() bool {
	for len(w.piece) == 0 {
		if len(w.buffers) == 0 {
			w.bad = true
			return false
		}
		w.piece, w.buffers = w.buffers[0].ReadOnlyData(), w.buffers[1:]
	}
	return true
}

func (w *walk) varint() (v uint64) {
	if len(w.piece) > 0 && w.piece[0] < 0x80 {
		v = uint64(w.piece[0])
		w.piece, w.left = w.piece[1:], w.left-1
		return v
	}
	if len(w.piece) >= binary.MaxVarintLen64 {
		v, n := binary.Uvarint(w.piece)
		if n <= 0 {
			w.bad = true
			return 0
		}
		w.piece, w.left = w.piece[n:], w.left-n
		return v
	}
	for shift := uint(0); shift < 64; shift += 7 {
		if !w.next() {
			return 0
		}
		b := w.piece[0]
		w.piece, w.left = w.piece[1:], w.left-1
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			w.bad = w.bad || shift == 63 && b > 1
			return v
		}
	}
	w.bad = true
	return 0
}

func (w *walk) skip(n int) {
	w.left -= n
	for n > len(w.piece) {
		n -= len(w.piece)
		w.piece = nil
		if !w.next() {
			return
		}
	}
	w.piece = w.piece[n:]
}
