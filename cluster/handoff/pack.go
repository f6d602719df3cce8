package handoff

import (
	"hash/crc32"
	"slices"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

const (
	// maxParts bounds the parts of a transfer batch.
	maxParts = 256
	// batchBytes is the size at which a transfer batch ends. closeBytes is that of a batch with a close, whose counters cannot
	// wait for the next batch. A counter with long logs takes up to 1.3 MiB.
	batchBytes = 256 << 10
	closeBytes = 4 << 20
	// maxCloseChanges is the number of known changes that may be packed together with a close.
	maxCloseChanges = 64
)

var (
	batchBounds = bucket.ImageBounds{Bytes: batchBytes, Sets: message.MaxSets, Counter: bucket.MaxCounterBytes}
	closeBounds = bucket.ImageBounds{Bytes: closeBytes, Sets: message.MaxSets, Counter: bucket.MaxCounterBytes}
)

// packing is a transfer batch under construction.
type packing struct {
	m         *Machine
	ch        *channel
	body      *message.TransferBatch
	targets   []*target
	throttled bool // has counters of initial syncs
}

// pump packs and sends what is due for ch's peer while the window allows.
func (m *Machine) pump(ch *channel) {
	if ch.unavailable || !m.reachable(ch.peer) {
		return
	}
	for !m.windowFull(ch) {
		k := packing{m: m, ch: ch, body: m.nextBatch}
		k.drops()
		k.closes()
		k.changes()
		k.initialSyncs()
		if len(k.body.Parts) == 0 {
			return
		}
		m.nextBatch = newBatch(len(k.body.Parts), len(k.body.Image.Data))
		f := &transferBatch{body: k.body, targets: k.targets}
		m.dispatch(ch, f)
		if k.throttled {
			m.throttle.last, m.throttle.inFlight = ch, f
		}
	}
}

// newBatch returns a batch with memory for so many parts and bytes, those of the one before it.
func newBatch(parts, bytes int) *message.TransferBatch {
	return &message.TransferBatch{Parts: make(message.Parts, 0, parts), Image: bucket.Image{Data: make([]byte, 0, bytes)}}
}

// emptied returns list without its elements, to be filled again unless it was long.
func emptied[T any](list []T) []T {
	if cap(list) > 256 {
		return nil
	}
	return list[:0]
}

// room is the number of counters that still fit into the batch.
func (k *packing) room() int {
	if len(k.body.Parts) >= maxParts || !batchBounds.Fits(&k.body.Image) {
		return 0
	}
	return max(0, k.m.c.Chunk-k.body.Image.Counters)
}

// export packs the current counters of the first n keys, as far as room allows. It returns the part of t with them, and the
// remaining keys.
func (k *packing) export(t *target, keys []key, n int, room bucket.ImageBounds) (part message.Part, left []key) {
	im := &k.body.Image
	from, counters := len(im.Data), im.Counters
	n, large := k.m.c.Table.ExportSome(k.m.now, t.part.number, keys[:n], im, room)
	k.m.stats.TooLarge += uint64(large)
	t.sum = addChecksum(t.sum, im.Data[from:])
	return message.Part{
		Partition: t.part.number, Kind: t.kind, InitialSync: t.initialSync, Loss: k.m.encodeLoss(k.m.lossOf(t.part)), Counters: im.Counters - counters, Bytes: len(im.Data) - from,
	}, keys[n:]
}

// addPart adds a part for t, whose counters were just exported, to the batch.
func (k *packing) addPart(t *target, part message.Part) {
	if part.End || part.Kind == message.Close {
		part.Sum = t.sum
	}
	if !t.begun {
		t.begun, part.Begin = true, true
	}
	t.inFlight++
	k.body.Parts = append(k.body.Parts, part)
	k.targets = append(k.targets, t)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// addChecksum extends the checksum of an initial sync by a portion; the number of portions counts too.
func addChecksum(sum uint64, portion []byte) uint64 {
	return (sum>>32+1)<<32 | uint64(crc32.Update(uint32(sum), castagnoli, portion))
}

// drops packs orders to drop unneeded replicas.
func (k *packing) drops() {
	n := min(len(k.ch.drops), maxParts/2)
	k.body.Parts = append(k.body.Parts, k.ch.drops[:n]...)
	k.targets = append(k.targets, make([]*target, n)...)
	k.ch.drops = k.ch.drops[n:]
}

// changes packs pending changes.
func (k *packing) changes() {
	for len(k.ch.changed) > 0 && k.room() > 0 {
		t := k.ch.changed[0]
		if t.gone || len(t.pending) == 0 {
			t.queued = false
			k.ch.changed = k.ch.changed[1:]
			continue
		}
		if t.repeats {
			t.pending, t.repeats = distinct(t.pending), false
		}
		k.change(t, min(len(t.pending), k.room()), batchBounds)
	}
}

// change packs the first n of t's pending changes, as far as room allows.
func (k *packing) change(t *target, n int, room bucket.ImageBounds) {
	part, left := k.export(t, t.pending, n, room)
	if len(left) == 0 {
		left, t.packed = emptied(t.pending), t.drained
	}
	t.pending = left
	part.Epoch, part.Start, part.Seq = t.part.ownership.epoch, t.part.ownership.start, t.packed
	k.addPart(t, part)
}

// initialSyncs packs counters of active targets, and activates waiting ones up to the limit.
func (k *packing) initialSyncs() {
	ch, m := k.ch, k.m
	mayInitialSync := m.throttle.allows(m.now)
	for k.room() > 0 {
		for len(ch.waiting) > 0 && (len(ch.active) < m.c.InitialSyncs || ch.waiting[0].kind != message.InitialSync) {
			t := ch.waiting[0]
			ch.waiting = ch.waiting[1:]
			if !t.gone {
				m.startPacking(t)
				ch.active = append(ch.active, t)
			}
		}
		ch.active = slices.DeleteFunc(ch.active, func(t *target) bool { return t.gone })
		at := slices.IndexFunc(ch.active, func(t *target) bool { return mayInitialSync || t.kind != message.InitialSync })
		if at < 0 {
			return
		}
		t := ch.active[at]
		k.throttled = k.throttled || t.kind == message.InitialSync
		part, left := k.export(t, t.keys, min(len(t.keys), k.room()), batchBounds)
		t.keys = left
		k.portion(t, &part)
		part.End = len(left) == 0
		k.addPart(t, part)
		if part.End {
			t.stage = ending
			ch.active = slices.Delete(ch.active, at, at+1)
			m.queueChanges(t)
		}
	}
}

// portion sets the fields of a sync part other than its counters.
func (k *packing) portion(t *target, part *message.Part) {
	p := t.part
	part.Seq = t.packed
	switch t.kind {
	case message.InitialSync:
		part.Epoch, part.Start = p.ownership.epoch, p.ownership.start
	case message.Merge:
		if !p.state.closeAbandoned {
			part.Epoch = p.state.mark.Epoch
		}
	case message.Answer:
		part.Epoch, part.Seq, part.Start = p.state.mark.Epoch, p.state.mark.Seq, p.state.start
		part.Next.Gen = t.gen
	}
}

// distinct sorts keys and removes duplicates, except of keys whose counter has moved to another slot.
func distinct(keys []key) []key {
	slices.SortFunc(keys, key.Compare)
	return slices.Compact(keys)
}
