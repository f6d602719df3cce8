package quorum_test

import (
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// process is one run of one node.
type process struct {
	w    *testCluster
	id   message.Peer
	m    *quorum.Machine
	down bool
	// asleep is until when it does nothing; incoming messages wait.
	asleep int64
	// Its clock reads start + rate × (the test cluster's time - born).
	born, start   int64
	rate          float64
	foundAt       int64 // test cluster's time at which it may found
	leaving       bool
	told          map[message.Peer]int64 // when it last sent its owned partitions
	pendingGrants uint64
	acked         map[string]int64 // by name, until when what it has acknowledged lasts
	known         message.Set
	story         []string               // every version it knew, in order
	targets       []string               // its join targets
	fromDisk      message.Set            // what it has begun with
	shown         map[string]message.Set // by name, the last set that it was shown
	writing       bool
}

func (p *process) clock() int64 { return p.start + int64(float64(p.w.now-p.born)*p.rate) }

// has reports whether the process has quorum.
func (p *process) has() bool { return p.m.QuorumUntil() > p.clock() }

func (p *process) flush() {
	for _, e := range p.m.Take() {
		p.post(e)
	}
	p.w.law.check(p)
	if r, ok := p.m.Unstored(); ok && !p.writing {
		p.writing = true
		p.w.post(event{at: p.w.now + p.w.fsync, p: p, put: &r})
	}
}

// put completes a write.
func (p *process) put(r message.Record) {
	p.writing = false
	if p.w.full[p.id.Name] {
		p.m.StoreFailed(p.clock())
		return
	}
	*p.w.disks[p.id.Name] = r
	p.m.Stored(p.clock(), r)
}

// post sends a message, and its copy if it has one.
func (p *process) post(e message.Envelope) {
	if e.Copy {
		p.carry(e)
		e.Copy = false
	}
	p.carry(e)
}

func (p *process) carry(e message.Envelope) {
	w := p.w
	to := w.all[e.To.Name]
	if _, cut := w.cuts[way{p.id.Name, e.To.Name}]; cut || to == nil || w.rng.Float64() < w.loss || w.lost != nil && w.lost(e) {
		return
	}
	for n := 1; n > 0; n-- {
		at := w.now + w.delay
		if w.slow > 0 {
			at += w.rng.Int64N(w.delay)
			if w.rng.Float64() < w.slow {
				at += w.rng.Int64N(w.late)
			}
		}
		w.post(event{at: at, p: to, e: &e})
		if w.double > 0 && w.rng.Float64() < w.double {
			n++
		}
	}
}

// take processes a message as the node and cluster/handoff do.
func (p *process) take(e message.Envelope) {
	if e.To != p.id {
		p.m.Step(p.clock(), e) // must be without effect
		return
	}
	switch b := e.Body.(type) {
	case *message.OwnedPartitions:
		p.m.Introduced(e.From)
	case *message.PendingGrants:
		p.m.Saw(e.From, b.Seq)
	case *message.Heartbeat:
		p.shown[e.From.Name] = b.Set
	case *message.Ack:
		if b.OK {
			p.acked[e.From.Name] = max(p.acked[e.From.Name], b.Sent+min(max(b.AckTTL, 600*ms), 1800*ms))
		}
	}
	p.m.Step(p.clock(), e)
}

// live runs the periodic work of the node.
func (p *process) live() {
	w, now := p.w, p.clock()
	var view []message.Peer
	for _, q := range w.all {
		if q != p && !q.down && !w.apart(p, q) {
			view = append(view, q.id)
		}
	}
	slices.SortFunc(view, func(a, b message.Peer) int { return strings.Compare(a.Name, b.Name) })
	p.m.SetView(now, view)
	if w.now >= p.foundAt {
		p.m.MayFound(now, true, p.answered())
	}
	switch {
	case p.leaving:
		p.m.Wish(now, message.Leave)
	case !p.m.In():
		p.m.Wish(now, message.Join)
	default:
		p.m.Wish(now, message.Stay)
	}
	for _, q := range view {
		if at, ok := p.told[q]; !ok || w.now-at >= 1000*ms {
			p.told[q] = w.now
			p.post(message.Envelope{From: p.id, To: q, Body: &message.OwnedPartitions{Full: true}})
		}
	}
	for _, d := range p.m.Awaited() {
		p.post(message.Envelope{From: p.id, To: d.Peer, Body: &message.PendingGrants{Seq: p.pendingGrants}})
	}
	p.m.Tick(now)
}

// answered reports whether all join targets run and are reached.
func (p *process) answered() bool {
	for _, name := range p.targets {
		q := p.w.all[name]
		if q == nil || q.down || p.w.apart(p, q) {
			return false
		}
	}
	return true
}
