package handoff

import (
	"hash/crc32"
	"slices"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
)

const (
	// maxParts is the most parts of a transfer batch.
	maxParts = 256
	// enough is how many bytes end a transfer batch, and closeBytes how many one with a close: its counters cannot wait for the next. A counter
	// with long logs takes up to 1.3 MiB.
	enough     = 256 << 10
	closeBytes = 4 << 20
	// nearlyLevel is how many changes of a partition may be left to be packed with its close, of those that are known.
	nearlyLevel = 64
)

var (
	room      = bucket.Room{Bytes: enough, Sets: message.MaxSets, Counter: bucket.MaxCounterBytes}
	closeRoom = bucket.Room{Bytes: closeBytes, Sets: message.MaxSets, Counter: bucket.MaxCounterBytes}
)

// packing is a transfer batch in the making.
type packing struct {
	m       *Machine
	ch      *channel
	body    *message.TransferBatch
	targets []*target
	paced   bool // portions of initial syncs are in it
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
		k.initialSyncs()
		if len(k.body.Parts) == 0 {
			return
		}
		m.blank = new(message.TransferBatch)
		f := &transferBatch{body: k.body, targets: k.targets}
		m.dispatch(ch, f)
		if k.paced {
			m.pace.last, m.pace.transferBatch = ch, f
		}
	}
}

// room is how many counters still go into the transfer batch.
func (k *packing) room() int {
	if len(k.body.Parts) >= maxParts || !room.Holds(&k.body.Image) {
		return 0
	}
	return max(0, k.m.c.Chunk-k.body.Image.Counters)
}

// export packs the counters of the first n of keys, as they are now, as far as there is room. It returns the part of t with them, and the
// keys that are left.
func (k *packing) export(t *target, keys []key, n int, room bucket.Room) (part message.Part, left []key) {
	im := &k.body.Image
	from := len(im.Data)
	n, large := k.m.c.Table.ExportSome(k.m.now, t.part.number, keys[:n], im, room)
	k.m.stats.TooLarge += uint64(large)
	t.sum = add(t.sum, im.Data[from:])
	return message.Part{
		Partition: t.part.number, Kind: t.kind, InitialSync: t.initialSync, Loss: k.m.says(k.m.lossOf(t.part)), Counters: n, Bytes: len(im.Data) - from,
	}, keys[n:]
}

// put puts a part for t, whose counters were exported last, into the transfer batch.
func (k *packing) put(t *target, part message.Part) {
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

// add continues the checksum of an initial sync with another portion; how many there were
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
		t.pending = distinct(t.pending)
		k.change(t, min(len(t.pending), k.room()), room)
	}
}

// change packs the first n of t's pending changes, as far as there is room.
func (k *packing) change(t *target, n int, room bucket.Room) {
	part, left := k.export(t, t.pending, n, room)
	if t.pending = left; len(left) == 0 {
		t.packed = t.level
	}
	part.Epoch, part.Start, part.Seq = t.part.hold.epoch, t.part.hold.start, t.packed
	k.put(t, part)
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

// initialSyncs packs counters of the targets that are being synced, and begins others
// while few are.
func (k *packing) initialSyncs() {
	ch, m := k.ch, k.m
	mayInitialSync := m.pace.may(m.now)
	for k.room() > 0 {
		for len(ch.waiting) > 0 && (len(ch.active) < m.c.InitialSyncs || ch.waiting[0].kind != message.InitialSync) {
			t := ch.waiting[0]
			ch.waiting = ch.waiting[1:]
			if !t.gone {
				m.start(t)
				ch.active = append(ch.active, t)
			}
		}
		ch.active = slices.DeleteFunc(ch.active, func(t *target) bool { return t.gone })
		at := slices.IndexFunc(ch.active, func(t *target) bool { return mayInitialSync || t.kind != message.InitialSync })
		if at < 0 {
			return
		}
		t := ch.active[at]
		k.paced = k.paced || t.kind == message.InitialSync
		part, left := k.export(t, t.keys, min(len(t.keys), k.room()), room)
		t.keys = left
		k.portion(t, &part)
		part.End = len(left) == 0
		k.put(t, part)
		if part.End {
			t.stage = ending
			ch.active = slices.Delete(ch.active, at, at+1)
			m.queue(t)
		}
	}
}

// portion fills in what a part of t's initial sync says beside its counters.
func (k *packing) portion(t *target, part *message.Part) {
	p := t.part
	part.Seq = t.packed
	switch t.kind {
	case message.InitialSync:
		part.Epoch, part.Start = p.hold.epoch, p.hold.start
	case message.Merge:
		if !p.state.passed {
			part.Epoch = p.state.mark.Epoch
		}
	case message.Answer:
		part.Epoch, part.Seq, part.Start = p.state.mark.Epoch, p.state.mark.Seq, p.state.start
		part.Next.Gen = t.gen
	}
}

// distinct returns keys in order, each once.
func distinct(keys []key) []key {
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
}
