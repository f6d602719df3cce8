package cluster

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// A key with home: auto moves to the region that wants most of it:
//
//  1. Seal: the owner in the home makes a record that names the next home, not settled, and waits until a replica has it. From then on
//     no owner of this region decides the key.
//  2. Copy: it sends the counter, with its grants, to the owner there, which merges it with what it has.
//  3. Name: it asks the directory to name that region, with the next epoch. The directory's record is the moment of the move. If the
//     counter did not arrive, it asks the directory to name its own region instead, with the same epoch: of one epoch the first counts.
//
// An owner that finds a record that is not settled begins again with step 2. Each step is repeated until it is answered.

const (
	dominantFor = 400 * time.Millisecond // so long a region must have had most of the demand
	stayFor     = 10 * time.Second       // so long a key stays after a move
	copyKeyFor  = 3 * time.Second        // then the key stays
	maxKeyMoves = 64                     // of one node, at a time
	maxDominant = 4096                   // keys that may move
)

// dominant says that a region has had most of the demand for a key since a time, and was seen last at another.
type dominant struct {
	region      string
	since, seen int64
	limits      *bucket.Limits
	moved       int64 // when the key has come here, 0 if not lately
}

// keyMove is a move of one key.
type keyMove struct {
	to           string // its next home: this region if it stays
	requester    string // the region that asks this one as the directory, "" if the key leaves this one
	via          string // the region that passes that on, or requester
	epoch        uint64
	sealed, told atomic.Int32 // whether replicas have the records: see confirmed
	began, sent  int64
	batch        uint64 // of the counter, 0 if it was not sent
	copied       bool
	term, seq    uint64 // of the last record
}

// noteDemand notes who wants most of a key whose home is here, after a request for a lease.
func (n *Node) noteDemand(now int64, ask *lease.Request) {
	if !n.manyRegions() || ask.Limits.Home() != bucket.HomeAuto {
		return
	}
	boot, rate, whole := n.demands.Most(now, ask.Key)
	region := n.regionOf(boot)
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	m := &n.directory.mu
	x, known := m.demand[ask.Key]
	switch {
	case region != "" && x.region == region && rate*5 >= whole*3: // rates vary
		x.seen = now
	case region != "" && rate*5 >= whole*4:
		x.region, x.since, x.seen, x.limits = region, now, now, ask.Limits
	default:
		x.region = ""
	}
	if !known && (x.region == "" || len(m.demand) >= maxDominant) {
		return
	}
	m.demand[ask.Key] = x
}

// noteKey notes that k, whose home is here, has a record that ends soon, or without renew that its record is not settled.
func (n *Node) noteKey(k bucket.Key, renew bool) {
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	if n.directory.mu.noted == nil {
		n.directory.mu.noted = map[bucket.Key]bool{}
	}
	if len(n.directory.mu.noted) < maxDominant {
		n.directory.mu.noted[k] = renew
	}
}

// turnKeys does what is due of the keys with home: auto, in the goroutine of runRoles.
func (n *Node) turnKeys(now int64, r *routing) {
	d, self := &n.directory, n.cfg.Regions.Self()
	n.listRegions()
	d.mu.Lock()
	ask, noted := d.mu.ask, d.mu.noted
	d.mu.ask, d.mu.noted = nil, nil
	var ready []bucket.Key
	for k, x := range d.mu.demand {
		switch {
		case x.region != "" && now-x.seen > int64(3*dominantFor), x.region == "" && now-x.moved > int64(stayFor):
			delete(d.mu.demand, k)
		case x.region != "" && now-x.since >= int64(dominantFor) && now-x.moved >= int64(stayFor) && len(d.moves)+len(ready) < maxKeyMoves:
			ready = append(ready, k)
		}
	}
	demand := make([]dominant, len(ready))
	for i, k := range ready {
		demand[i] = d.mu.demand[k]
		delete(d.mu.demand, k)
	}
	d.mu.Unlock()
	for i, k := range ready {
		n.startKeyMove(now, r, k, &demand[i])
	}
	out := map[string][]message.KeyHome{}
	for k, renew := range noted {
		switch x, _, ok := n.record(now, k); {
		case !ok || x.home == "" || d.moves[k] != nil:
		case renew && x.settled && x.home == self:
			ask = append(ask, message.KeyHome{Key: k, Home: self, Epoch: x.epoch + 1})
		case !x.settled && len(d.moves) < 2*maxKeyMoves:
			d.moves[k] = &keyMove{to: x.home, epoch: x.epoch, began: now, term: n.localTerm(k)}
		}
	}
	for k, m := range d.moves {
		role := self
		if m.requester != "" {
			role = n.directoryOf(k)
		}
		if _, may := n.mayPlay(now, role); !may || !r.owns(k) || !n.mayDecide(now) {
			delete(d.moves, k)
			continue
		}
		n.turnKeyMove(now, k, m, out)
	}
	for _, x := range ask {
		directory := n.roles.plays(n.directoryOf(x.Key))
		if directory == self {
			n.takeHome(now, self, x, out)
			continue
		}
		for _, region := range n.cfg.Regions.Others() {
			if region == directory || x.For == self {
				out[region] = append(out[region], x)
			}
		}
	}
	n.postHomes(out)
}

// postHomes sends to each region what is for it. What is for this one is not sent.
func (n *Node) postHomes(out map[string][]message.KeyHome) {
	for region, list := range out {
		for part := range slices.Chunk(list, message.MaxHomes) {
			if region != n.cfg.Regions.Self() {
				n.cfg.Regions.Post(region, &message.RegionMessages{From: message.Peer{Name: n.cfg.Regions.Self()}, Homes: part})
			}
		}
	}
}

// startKeyMove seals k, if it can be moved.
func (n *Node) startKeyMove(now int64, r *routing, k bucket.Key, x *dominant) {
	self := n.cfg.Regions.Self()
	role, sure := n.place(now, k)
	if _, may := n.mayPlay(now, self); !r.owns(k) || !n.mayDecide(now) || !sure || role != self || !may || n.roles.plays(x.region) != x.region ||
		x.limits.Unlimited() || x.limits.SpentUntil(now)-now > int64(longestMove) {
		return
	}
	old, _, ok := n.record(now, k)
	if !ok {
		return
	}
	m := &keyMove{to: x.region, epoch: old.epoch + 1, began: now, term: n.localTerm(k)}
	if m.seq, ok = n.setRecord(now, k, record{home: m.to, epoch: m.epoch}); ok {
		n.directory.moves[k] = m
	}
}

// confirmed reports whether replicas have change seq of k, for which it starts to wait if state is 0. state is then 2.
func (n *Node) confirmed(state *atomic.Int32, k bucket.Key, term, seq uint64) bool {
	if state.CompareAndSwap(0, 1) {
		c := change{partition: k.Shard(n.cfg.Ring.Partitions), localTerm: term, seq: seq}
		n.background.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), n.cfg.CheckTimeout)
			defer cancel()
			if n.awaitConfirmed(ctx, c) {
				state.Store(2)
			} else {
				state.Store(0)
			}
			signal(n.roles.wake)
		})
	}
	return state.Load() == 2
}

// turnKeyMove does the next step of m.
func (n *Node) turnKeyMove(now int64, k bucket.Key, m *keyMove, out map[string][]message.KeyHome) {
	self, directory := n.cfg.Regions.Self(), n.roles.plays(n.directoryOf(k))
	again := func(region string) bool { return now-m.sent >= int64(resendAfter+4*n.cfg.Regions.RTT(region)) }
	switch {
	case !n.confirmed(&m.sealed, k, m.term, m.seq):
	case m.requester == "" && m.to != self && (n.roles.plays(m.to) != m.to || !m.copied && now-m.began >= int64(copyKeyFor)):
		m.to, m.sent = self, 0
	case !m.copied && m.to != self && guard.On(guard.MoveCounter):
		if m.batch == 0 || again(m.to) {
			n.sendCounter(now, k, m)
		}
	case directory != self:
		if m.sent == 0 || again(directory) {
			ask := message.KeyHome{Key: k, Home: m.to, Epoch: m.epoch}
			for _, region := range n.cfg.Regions.Others() {
				if region == directory || m.sent != 0 { // if it is not reached, another region may reach it
					out[region] = append(out[region], ask)
				}
			}
			m.sent = now
		}
	default:
		n.nameHome(now, k, m, out)
	}
}

// nameHome is step 3 where this region is the directory.
func (n *Node) nameHome(now int64, k bucket.Key, m *keyMove, out map[string][]message.KeyHome) {
	if m.told.Load() == 0 {
		m.term = n.localTerm(k)
		seq, ok := n.setRecord(now, k, record{home: m.to, epoch: m.epoch, settled: true})
		if !ok {
			return
		}
		if seq != 0 {
			m.seq = seq
			if self := n.cfg.Regions.Self(); m.to == self && m.requester != self {
				n.arrived(now, k)
			}
		}
	}
	if !n.confirmed(&m.told, k, m.term, m.seq) {
		return
	}
	if r, _, ok := n.record(now, k); ok {
		told := message.KeyHome{Key: k, Home: r.home, Epoch: r.epoch, Told: true}
		out[r.home] = append(out[r.home], told)
		if m.requester != "" && (m.requester != r.home || m.via != m.requester) {
			told.For = m.requester
			out[m.via] = append(out[m.via], told)
		}
		n.endKeyMove(k, m)
	}
}

func (n *Node) endKeyMove(k bucket.Key, m *keyMove) {
	delete(n.directory.moves, k)
	switch {
	case m.requester != "":
	case m.to != n.cfg.Regions.Self():
		n.directory.moved.Add(1)
	default:
		n.directory.stayed.Add(1)
	}
}

// sendCounter sends the counter of k and its grants to the next home.
func (n *Node) sendCounter(now int64, k bucket.Key, m *keyMove) {
	p := k.Shard(n.cfg.Ring.Partitions)
	if m.batch == 0 {
		n.roles.batches++
		m.batch = n.roles.batches
	}
	m.sent = now
	c := &message.RoleCounters{Key: true, From: n.cfg.Name, Partitions: n.cfg.Ring.Partitions, Batch: message.TransferBatch{N: m.batch}}
	im := &c.Batch.Image
	keys := slices.DeleteFunc(n.table.KeysOf(p, 0, isAuto, nil), func(x bucket.KeyAt) bool { return x.Counter() != k })
	n.table.Export(now, p, keys, im)
	c.Batch.Parts = []message.Part{{Partition: p, Kind: message.Merge, Counters: im.Counters, Bytes: len(im.Data)}}
	n.cfg.Regions.Post(m.to, &message.RegionMessages{From: message.Peer{Name: n.cfg.Regions.Self()}, Counters: c})
}

// counterTaken notes that the next home has the counter of a key, or will not take it.
func (n *Node) counterTaken(from string, t *message.CountersTaken) {
	for _, m := range n.directory.moves {
		if m.batch != t.N || m.to != from || m.copied || m.requester != "" {
			continue
		}
		if m.sent = 0; t.Problem != "" {
			m.to = n.cfg.Regions.Self()
		} else {
			m.copied = true
		}
	}
}

// takeHomes processes messages of another region about homes of keys. With outside, they are not passed on yet.
func (n *Node) takeHomes(now int64, r *routing, outside bool, m *message.RegionMessages) {
	pass, out := map[int][]message.KeyHome{}, map[string][]message.KeyHome{}
	for _, x := range m.Homes {
		switch owner := r.owner(x.Key); {
		case owner == r.self && n.mayDecide(now):
			n.takeHome(now, m.From.Name, x, out)
		case owner != r.self && owner != noNode && outside:
			pass[owner] = append(pass[owner], x)
		}
	}
	for owner, list := range pass {
		n.post(r, owner, &message.RegionMessages{From: m.From, Homes: list})
	}
	n.postHomes(out)
}

func (n *Node) takeHome(now int64, from string, x message.KeyHome, out map[string][]message.KeyHome) {
	self, d := n.cfg.Regions.Self(), n.directoryOf(x.Key)
	switch directory := n.roles.plays(d); {
	case x.Told && x.For != "" && x.For != self:
		out[x.For] = append(out[x.For], x)
		return
	case x.Told:
		n.homeTold(now, x, out)
		return
	case directory != self && (x.Home != "" && x.For == "" || x.Home == "" && x.For == from):
		x.For = from
		out[directory] = append(out[directory], x)
		return
	}
	old, _, ok := n.record(now, x.Key)
	if _, may := n.mayPlay(now, d); !may || n.roles.plays(d) != self || !ok || n.directory.moves[x.Key] != nil {
		return // it is asked again
	}
	requester := cmp.Or(x.For, from)
	named := x.Home != "" && x.Epoch > old.epoch && n.roles.plays(x.Home) == x.Home && n.cfg.Regions.Has(x.Home) && n.roles.plays(cmp.Or(old.home, d)) == requester
	if old.home != "" && !old.settled && n.roles.plays(self) != self { // it was moving from here, and another region decides such keys now
		named, x.Home, x.Epoch = true, self, old.epoch
	}
	switch {
	case named:
		// The requester is told when replicas have the record: it asks again if that is lost.
		m := &keyMove{to: x.Home, epoch: x.Epoch, copied: true, began: now, requester: requester, via: from}
		m.sealed.Store(2)
		n.directory.moves[x.Key] = m
		n.turnKeyMove(now, x.Key, m, out)
		return
	case old.home == "":
		old = record{home: d, settled: true}
	case !old.settled:
		return
	}
	out[from] = append(out[from], message.KeyHome{Key: x.Key, Home: old.home, Epoch: old.epoch, Told: true, For: x.For})
}

// homeTold notes what the directory says, and tells the next home, which the directory may not reach.
func (n *Node) homeTold(now int64, x message.KeyHome, out map[string][]message.KeyHome) {
	self := n.cfg.Regions.Self()
	old, _, ok := n.record(now, x.Key)
	if !ok || !n.cfg.Regions.Has(x.Home) {
		return
	}
	if x.Epoch > 0 && (x.Home == self || old.home != "" || n.roles.plays(n.directoryOf(x.Key)) == self) {
		if seq, _ := n.setRecord(now, x.Key, record{home: x.Home, epoch: x.Epoch, settled: true}); seq != 0 && x.Home == self && old.home != self {
			n.arrived(now, x.Key)
		}
	}
	if m := n.directory.moves[x.Key]; m != nil && x.Epoch >= m.epoch {
		m.to = x.Home
		n.endKeyMove(x.Key, m)
		if x.For = ""; x.Home != self {
			out[x.Home] = append(out[x.Home], x)
		}
	}
	version := n.roles.known().set.Version
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	if x.Home == self {
		n.directory.mu.found.Remove(x.Key)
		return
	}
	n.directory.mu.found.Add(x.Key, found{role: x.Home, asked: now, version: version})
}

// arrived makes what this region has leased of k a part of its own counter, which has the grants.
func (n *Node) arrived(now int64, k bucket.Key) {
	n.denials.Forget(now, k)
	n.directory.mu.Lock()
	n.directory.mu.demand[k] = dominant{moved: now}
	n.directory.mu.Unlock()
	for home, b := range n.homeBooks {
		var rest []lease.Return
		for _, back := range b.Drop(func(other bucket.Key) bool { return other != k }) {
			if back.Key == k {
				n.table.Return(now, k, back.ID, back.Unspent)
			} else {
				rest = append(rest, back)
			}
		}
		n.returnHome(home, rest)
	}
}
