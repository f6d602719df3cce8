package peer

import (
	"fmt"
	"math"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Bits of Transfer batch.flags.
const (
	flagBegin = 1 << 0
	flagEnd   = 1 << 1
)

// transfer batch puts p into empty columns, perhaps with the memory of an earlier frame's.
func (w *controlMessageWriter) transferBatch(p *message.TransferBatch) *peerv1.ControlMessage_TransferBatch {
	if w.used == len(w.transferBatches) {
		w.transferBatches = append(w.transferBatches, &peerv1.ControlMessage_TransferBatch{TransferBatch: new(peerv1.TransferBatch)})
	}
	body := w.transferBatches[w.used]
	w.used++
	m := body.TransferBatch
	if len(p.Image.Limits) > maxGather {
		w.err = fmt.Errorf("image: %d sets of limits; want at most %d", len(p.Image.Limits), maxGather)
		return body
	}
	size := 0
	var boots [6]lastText
	m.N, m.AgeNs = p.N, uint64(p.Age)
	for i := range p.Parts {
		t := &p.Parts[i]
		var flags byte
		if t.Begin {
			flags |= flagBegin
		}
		if t.End {
			flags |= flagEnd
		}
		m.Partition = append(m.Partition, w.number(t.Partition))
		m.Kind = append(m.Kind, byte(t.Kind))
		m.Flags = append(m.Flags, flags)
		m.EpochGen = append(m.EpochGen, t.Epoch.Gen)
		m.EpochBoot = append(m.EpochBoot, boots[0].in(w, t.Epoch.Boot))
		m.InitialSync = append(m.InitialSync, t.InitialSync)
		m.Seq = append(m.Seq, t.Seq)
		m.StartGen = append(m.StartGen, t.Start.Epoch.Gen)
		m.StartBoot = append(m.StartBoot, boots[1].in(w, t.Start.Epoch.Boot))
		m.StartSeq = append(m.StartSeq, t.Start.Seq)
		m.NextGen = append(m.NextGen, t.Next.Gen)
		m.NextBoot = append(m.NextBoot, boots[2].in(w, t.Next.Boot))
		m.Counters = append(m.Counters, w.number(t.Counters))
		m.Size = append(m.Size, w.number(t.Bytes))
		m.Sum = append(m.Sum, t.Sum)
		m.LossGen = append(m.LossGen, t.Loss.Of.Gen)
		m.LossBoot = append(m.LossBoot, boots[3].in(w, t.Loss.Of.Boot))
		m.LossAgeNs = append(m.LossAgeNs, t.Loss.Age)
		m.LossSureGen = append(m.LossSureGen, t.Loss.Sure.Gen)
		m.LossSureBoot = append(m.LossSureBoot, boots[4].in(w, t.Loss.Sure.Boot))
		m.LossHasGen = append(m.LossHasGen, t.Loss.Has.Gen)
		m.LossHasBoot = append(m.LossHasBoot, boots[5].in(w, t.Loss.Has.Boot))
		size += t.Bytes
	}
	sealTransferBatch(m)
	for _, l := range p.Image.Limits {
		m.Limits = append(m.Limits, w.limit(l))
	}
	m.Data = p.Image.Data
	if size != len(m.Data) {
		w.err = sizeError(uint64(size), len(m.Data))
	}
	return body
}

func sizeError(parts uint64, data int) error {
	return fmt.Errorf("image: parts of %d bytes in all, data of %d; want as many", parts, data)
}

// lastText remembers a text that mostly comes again in the next part.
type lastText struct {
	s  string
	id uint32
}

func (l *lastText) in(w *controlMessageWriter, s string) uint32 {
	if l.s != s {
		l.s, l.id = s, w.text(s)
	}
	return l.id
}

// cutTransferBatch is cutRequest for a Transfer batch. Its data was granted to it.
func cutTransferBatch(m *peerv1.TransferBatch) {
	m.N, m.AgeNs = 0, 0
	m.Partition = m.Partition[:0]
	m.Kind = m.Kind[:0]
	m.Flags = m.Flags[:0]
	m.EpochGen = m.EpochGen[:0]
	m.EpochBoot = m.EpochBoot[:0]
	m.InitialSync = m.InitialSync[:0]
	m.Seq = m.Seq[:0]
	m.StartGen = m.StartGen[:0]
	m.StartBoot = m.StartBoot[:0]
	m.StartSeq = m.StartSeq[:0]
	m.NextGen = m.NextGen[:0]
	m.NextBoot = m.NextBoot[:0]
	m.Counters = m.Counters[:0]
	m.Size = m.Size[:0]
	m.Sum = m.Sum[:0]
	m.LossGen = m.LossGen[:0]
	m.LossBoot = m.LossBoot[:0]
	m.LossAgeNs = m.LossAgeNs[:0]
	m.LossSureGen = m.LossSureGen[:0]
	m.LossSureBoot = m.LossSureBoot[:0]
	m.LossHasGen = m.LossHasGen[:0]
	m.LossHasBoot = m.LossHasBoot[:0]
	m.Limits = m.Limits[:0]
	m.Data = nil
}

// sealTransferBatch is sealRequest for a Transfer batch.
func sealTransferBatch(m *peerv1.TransferBatch) {
	m.Flags = trim(m.Flags)
	m.EpochGen = trim(m.EpochGen)
	m.EpochBoot = trim(m.EpochBoot)
	m.InitialSync = trim(m.InitialSync)
	m.Seq = trim(m.Seq)
	m.StartGen = trim(m.StartGen)
	m.StartBoot = trim(m.StartBoot)
	m.StartSeq = trim(m.StartSeq)
	m.NextGen = trim(m.NextGen)
	m.NextBoot = trim(m.NextBoot)
	m.Counters = trim(m.Counters)
	m.Size = trim(m.Size)
	m.Sum = trim(m.Sum)
	m.LossGen = trim(m.LossGen)
	m.LossBoot = trim(m.LossBoot)
	m.LossAgeNs = trim(m.LossAgeNs)
	m.LossSureGen = trim(m.LossSureGen)
	m.LossSureBoot = trim(m.LossSureBoot)
	m.LossHasGen = trim(m.LossHasGen)
	m.LossHasBoot = trim(m.LossHasBoot)
}

// transfer batch returns the message that m holds, or nil with r.err set. It takes m's data
// over, which was allocated for this frame.
func (r *controlMessageReader) transferBatch(m *peerv1.TransferBatch) *message.TransferBatch {
	n := len(m.Partition)
	for _, c := range []struct {
		name string
		len  int
	}{
		{"kind", len(m.Kind)}, {"flags", len(m.Flags)}, {"epoch_gen", len(m.EpochGen)}, {"epoch_boot", len(m.EpochBoot)},
		{"initial_sync", len(m.InitialSync)}, {"seq", len(m.Seq)}, {"start_gen", len(m.StartGen)}, {"start_boot", len(m.StartBoot)},
		{"start_seq", len(m.StartSeq)}, {"next_gen", len(m.NextGen)}, {"next_boot", len(m.NextBoot)},
		{"counters", len(m.Counters)}, {"size", len(m.Size)}, {"sum", len(m.Sum)},
		{"loss_gen", len(m.LossGen)}, {"loss_boot", len(m.LossBoot)}, {"loss_age_ns", len(m.LossAgeNs)},
		{"loss_sure_gen", len(m.LossSureGen)}, {"loss_sure_boot", len(m.LossSureBoot)},
		{"loss_has_gen", len(m.LossHasGen)}, {"loss_has_boot", len(m.LossHasBoot)},
	} {
		if c.len != 0 && c.len != n {
			r.err = fmt.Errorf("transfer batch: column %s has %d values for %d parts; want as many, or none", c.name, c.len, n)
			return nil
		}
	}
	if m.AgeNs > math.MaxInt64 {
		r.err = fmt.Errorf("transfer batch: age_ns %d; want at most %d", m.AgeNs, int64(math.MaxInt64))
		return nil
	}
	p := &message.TransferBatch{N: m.N, Age: int64(m.AgeNs), Image: bucket.Image{Data: m.Data}}
	if len(m.Data) == 0 {
		p.Image.Data = nil
	}
	if n > 0 {
		p.Parts = make([]message.Part, n)
	}
	var size, counters uint64
	for i := range p.Parts {
		flags := at(m.Flags, i)
		t := &p.Parts[i]
		t.Partition = r.number(m.Partition[i])
		t.Kind = r.kind(at(m.Kind, i))
		t.Begin, t.End = flags&flagBegin != 0, flags&flagEnd != 0
		t.Epoch = message.Epoch{Gen: at(m.EpochGen, i), Boot: r.text(at(m.EpochBoot, i))}
		t.InitialSync, t.Seq = at(m.InitialSync, i), at(m.Seq, i)
		t.Start.Epoch = message.Epoch{Gen: at(m.StartGen, i), Boot: r.text(at(m.StartBoot, i))}
		t.Start.Seq = at(m.StartSeq, i)
		t.Next = message.Epoch{Gen: at(m.NextGen, i), Boot: r.text(at(m.NextBoot, i))}
		t.Counters, t.Bytes = r.number(at(m.Counters, i)), r.number(at(m.Size, i))
		t.Sum = at(m.Sum, i)
		t.Loss = message.Loss{
			Of:   message.Epoch{Gen: at(m.LossGen, i), Boot: r.text(at(m.LossBoot, i))},
			Sure: message.Epoch{Gen: at(m.LossSureGen, i), Boot: r.text(at(m.LossSureBoot, i))},
			Has:  message.Epoch{Gen: at(m.LossHasGen, i), Boot: r.text(at(m.LossHasBoot, i))}, Age: at(m.LossAgeNs, i),
		}
		counters += uint64(t.Counters)
		size += uint64(t.Bytes)
	}
	if size != uint64(len(m.Data)) {
		r.err = sizeError(size, len(m.Data))
		return nil
	}
	if counters > math.MaxInt32 {
		r.err = fmt.Errorf("image: %d counters; want at most %d", counters, math.MaxInt32)
		return nil
	}
	p.Image.Counters = int(counters)
	p.Image.Limits = each(m.Limits, r.limit)
	return p
}

// kind returns v as a message.Kind.
func (r *controlMessageReader) kind(v byte) message.Kind {
	if v == 0 {
		r.unknown = true
	}
	return known(r, uint32(v), message.Drop)
}

// limit returns the limits that id stands for, nil for none and for such as this
// node cannot apply.
func (r *controlMessageReader) limit(id *uint32) *bucket.Limits {
	if *id == 0 {
		return nil
	}
	l, err := r.definitions.get(*id)
	if err != nil {
		r.err = fmt.Errorf("image: %w", err)
	}
	return l
}
