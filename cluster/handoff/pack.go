package handoff

import (
	"hash/crc32"
	"slices"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
)

const (
	// maxParts is the most parts of a parcel.
	maxParts = 256
	// enough is how many bytes end a parcel, and step how many counters are packed
	// between two looks at them: a counter with a long log takes some hundred KiB.
	enough = 256 << 10
	step   = 16
)

// packing is a parcel in the making.
type packing struct {
	m       *Machine
	ch      *channel
	body    *message.Parcel
	targets []*target
	fills   bool // portions of Fills are in it
}

// pump packs and sends what is due to ch's peer while there is room for it.
func (m *Machine) pump(ch *channel) {
	if ch.unfit || !m.reachable(ch.peer) {
		return
	}
	for !m.full(ch) {
		k := packing{m: m, ch: ch, body: m.blank}
		k.drops()
		k.closes()
		k.changes()
		k.fillings()
		if len(k.body.Parts) == 0 {
			return
		}
		m.blank = new(message.Parcel)
		f := &parcel{body: k.body, targets: k.targets}
		m.dispatch(ch, f)
		if k.fills {
			m.pace.last, m.pace.parcel = ch, f
		}
	}
}

// room is how many counters still go into the parcel.
func (k *packing) room() int {
	if len(k.body.Parts) >= maxParts || len(k.body.Image.Data) >= enough {
		return 0
	}
	return max(0, k.m.c.Chunk-k.body.Image.Counters)
}

// add packs the counters of keys, as they are now, as a part for t.
func (k *packing) add(t *target, part message.Part, keys []key) {
	im := &k.body.Image
	from := len(im.Data)
	k.m.c.Table.Export(k.m.now, t.part.number, keys, im)
	part.Partition, part.Fill, part.Loss = t.part.number, t.fill, k.m.says(k.m.lossOf(t.part))
	if part.Kind == 0 {
		part.Kind = t.kind
	}
	part.Counters, part.Bytes = len(keys), len(im.Data)-from
	t.sum = add(t.sum, im.Data[from:])
	if part.End || part.Kind == message.Close {
		part.Sum = t.sum
	}
	if !t.begun {
		t.begun, part.Begin = true, true
	}
	t.under++
	k.body.Parts = append(k.body.Parts, part)
	k.targets = append(k.targets, t)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// add continues the checksum of a filling with another portion; how many there were
// counts too.
func add(sum uint64, portion []byte) uint64 {
	return (sum>>32+1)<<32 | uint64(crc32.Update(uint32(sum), castagnoli, portion))
}

// drops packs word of copies that are of no use any more.
func (k *packing) drops() {
	n := min(len(k.ch.drops), maxParts/2)
	k.body.Parts = append(k.body.Parts, k.ch.drops[:n]...)
	k.targets = append(k.targets, make([]*target, n)...)
	k.ch.drops = k.ch.drops[n:]
}

// changes packs what has changed.
func (k *packing) changes() {
	for len(k.ch.changed) > 0 && k.room() > 0 {
		t := k.ch.changed[0]
		if t.gone || len(t.pending) == 0 {
			t.queued = false
			k.ch.changed = k.ch.changed[1:]
			continue
		}
		keys := k.take(&t.pending)
		part := message.Part{Epoch: t.part.hold.epoch, Start: t.part.hold.start}
		if len(t.pending) == 0 {
			t.packed = t.level
		}
		part.Seq = t.packed
		k.add(t, part, keys)
	}
}

// take cuts as many keys off list as the parcel has room for, each once.
func (k *packing) take(list *[]key) []key {
	*list = distinct(*list)
	n := min(len(*list), k.room(), step)
	keys := (*list)[:n:n]
	*list = (*list)[n:]
	return keys
}

func compareKeys(a, b bucket.Key) int {
	switch {
	case a.Hi < b.Hi:
		return -1
	case a.Hi > b.Hi:
		return 1
	case a.Lo < b.Lo:
		return -1
	case a.Lo > b.Lo:
		return 1
	}
	return 0
}

// fillings packs counters of the targets that are being filled, and begins others
// while few are.
func (k *packing) fillings() {
	ch, m := k.ch, k.m
	mayFill := m.pace.may(m.now)
	for k.room() > 0 {
		for len(ch.waiting) > 0 && (len(ch.active) < m.c.Fillings || ch.waiting[0].kind != message.Fill) {
			t := ch.waiting[0]
			ch.waiting = ch.waiting[1:]
			if !t.gone {
				m.start(t)
				ch.active = append(ch.active, t)
			}
		}
		ch.active = slices.DeleteFunc(ch.active, func(t *target) bool { return t.gone })
		at := slices.IndexFunc(ch.active, func(t *target) bool { return mayFill || t.kind != message.Fill })
		if at < 0 {
			return
		}
		t := ch.active[at]
		k.fills = k.fills || t.kind == message.Fill
		n := min(len(t.keys), k.room(), step)
		keys := t.keys[:n:n]
		t.keys = t.keys[n:]
		part := k.portion(t)
		part.End = len(t.keys) == 0
		k.add(t, part, keys)
		if part.End {
			t.stage = ending
			ch.active = slices.Delete(ch.active, at, at+1)
			m.queue(t)
		}
	}
}

// portion returns a part of t's filling without its counters.
func (k *packing) portion(t *target) message.Part {
	p := t.part
	part := message.Part{Seq: t.packed}
	switch t.kind {
	case message.Fill:
		part.Epoch, part.Start = p.hold.epoch, p.hold.start
	case message.Merge:
		if !p.state.passed {
			part.Epoch = p.state.mark.Epoch
		}
	case message.Answer:
		part.Epoch, part.Seq, part.Start = p.state.mark.Epoch, p.state.mark.Seq, p.state.start
		part.Next.Gen = t.gen
	}
	return part
}

// distinct returns keys in order, each once.
func distinct(keys []key) []key {
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
}
