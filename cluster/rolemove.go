package cluster

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// Counters follow a role. Before a region passes a role on, its owners send their counters of keys with that home to the owners in the
// other region, which merge them with what they have:
//
//  1. Copy: all counters, while the region still decides. From the life of a lease before, other regions get no leases of these keys: a merge
//     would undo what they return after the copy.
//  2. Seal: the speaker tells the nodes that the region does not decide any more. After roleTTL the last one knows.
//  3. Rest: the counters that were used since they were copied. If the other region does not get all in time, this one decides again.
//  4. Pass: a version gives the role to the other region, which has the counters; see message.Role.By.
//
// After that, and whenever a role was reassigned, the owners in other regions send what they have of that home, and from time to time what
// has changed since: by a merge inside the region, or by decisions under a speaker that did not know of step 4. A merge never makes
// a counter more permissive, so what arrives twice or late is harmless.

const (
	// copyTimeout and restTimeout bound the steps 1 and 3. No region decides during the latter.
	copyTimeout = time.Minute
	restTimeout = 5 * time.Second
	// moveBatches is how many batches of a node may be unconfirmed, of about moveBytes each. exportTime is how long one turn may export.
	moveBatches = 8
	moveBytes   = 128 << 10
	exportTime  = 10 * time.Millisecond
	// resendAfter, and four round trips, is when a batch counts as lost.
	resendAfter = 500 * time.Millisecond
	// moveAgain is how often a region looks for counters of a home that another region decides.
	moveAgain = 5 * time.Second
)

var moveBounds = bucket.ImageBounds{Bytes: moveBytes, Sets: message.MaxSets, Counter: bucket.MaxCounterBytes}

// roleMove is a move of a role's counters, as the speaker sees it.
type roleMove struct {
	message.Passing
	until  int64        // the end of this step
	from   message.Role // in the set when it began
	passAt int64        // when no node of the region decides any more, 0 as long as they are to
	played played
	set    message.Set // when the region stopped deciding
	bits   bitmap      // of partitions whose counters have arrived in this step
	// left is how many of partitions have not.
	left, partitions int
}

// bitmap has a bit for each partition, from the lowest of each byte.
type bitmap []byte

func newBitmap(partitions int) bitmap { return make(bitmap, (partitions+7)/8) }

func (b bitmap) has(i int) bool { return i/8 < len(b) && b[i/8]&(1<<(i%8)) != 0 }
func (b bitmap) set(i int)      { b[i/8] |= 1 << (i % 8) }

func (m *roleMove) begin(until int64) {
	m.bits, m.left, m.until = newBitmap(m.partitions), m.partitions, until
}

// view returns what the region's nodes are told.
func (m *roleMove) view() message.Passing {
	if m == nil {
		return message.Passing{}
	}
	return m.Passing
}

// stops reports whether the region does not decide keys of that home because of m, which may be nil.
func (m *roleMove) stops(of string) bool { return m != nil && m.passAt != 0 && m.Role.Of == of }

// startMove begins to pass on p, which this region plays. There are so many partitions.
func (s *speaker) startMove(now int64, p played, to string, partitions int) error {
	if s.move != nil {
		return errMoving
	}
	role := message.Role{Of: p.of, At: to, By: fmt.Sprintf("%s.%d", s.self.Boot, now)}
	if p.since != 0 && to != p.of { // which has what it had itself
		role.Age = max(1, now-p.since)
	}
	from, _ := s.machine.Set().Role(p.of)
	s.move = &roleMove{Passing: message.Passing{Role: role}, from: from, played: p, partitions: partitions}
	s.move.begin(now + int64(copyTimeout))
	s.problem, s.logged = "", false
	return nil
}

// tickMove begins the next step of a move if it is due.
func (s *speaker) tickMove(now int64) {
	m, set := s.move, s.machine.Set()
	if m == nil || set.Zero() {
		return
	}
	role, _ := set.Role(m.Role.Of)
	switch complete := m.left == 0 || !guard.On(guard.RoleCounters); {
	case role != m.from:
		s.move = nil
	case !set.Has(m.Role.At):
		s.endMove("it is not heard any more: promote it again when it is linked")
	case m.Sealed && complete:
		s.machine.Pass(now, m.Role)
	case m.passAt == 0 && complete:
		m.passAt, m.set = now+int64(roleTTL)*11/10, set
	case m.passAt != 0 && !m.Sealed:
		if now >= m.passAt {
			m.Sealed = true
			m.begin(now + int64(restTimeout))
		}
	case now >= m.until && m.Sealed:
		s.endMove("not all counters have arrived there in time, so this region decides again: promote it once more when the link is better")
	case now >= m.until:
		s.endMove("not all counters have arrived there in time: look at its round trip and reason, and promote it again")
	}
}

// endMove ends a move without success. It must not be called once the others were asked for the version after the present one.
func (s *speaker) endMove(why string) {
	if s.move.Role.At != s.self.Name { // else the speaker before has begun it
		s.problem = notPassed(s.move.Role, why)
	}
	if s.move.passAt != 0 {
		s.resumed = &roleView{set: s.move.set, plays: []played{s.move.played}}
	}
	s.move = nil
}

func notPassed(r message.Role, why string) string {
	return fmt.Sprintf("keys with the home %s were not passed on to region %s: %s", r.Of, r.At, why)
}

// noteMoved notes which partitions' counters a node has moved.
func (n *Node) noteMoved(got message.Moved) {
	s := n.roles.speaker
	if s == nil || s.move == nil || got.Passing != s.move.Passing {
		return
	}
	m := s.move
	if got.Problem != "" && m.left > 0 {
		s.endMove(got.Problem)
		return
	}
	for p := range n.cfg.Ring.Partitions {
		if bitmap(got.Bits).has(p) && !m.bits.has(p) {
			m.bits.set(p)
			m.left--
		}
	}
}

// mover sends a node's counters of one home to the region that decides its keys, or is to.
type mover struct {
	role message.Role    // Of and At only
	pass message.Passing // zero: the other region has the role
	// Per partition: since when counters must have been used to be sent, when they were read last in this step, 0 if not yet, and the
	// number of batches with some of them that are not confirmed.
	since, read []int64
	open        []int
	batches     map[uint64]*moveBatch
	part        int // the partition that is being read if keys are left of it
	keys        []bucket.KeyAt
	began       int64
	problem     string
}

// moveBatch is one that is not confirmed.
type moveBatch struct {
	counters message.RoleCounters
	missing  []int // partitions
	made     int64
	sent     int64
}

func newMover(role message.Role, partitions int) *mover {
	m := &mover{
		role: role, since: make([]int64, partitions), read: make([]int64, partitions), open: make([]int, partitions), batches: map[uint64]*moveBatch{},
	}
	for p := range m.since {
		m.since[p] = math.MinInt64
	}
	return m
}

// begin begins a step: what has arrived in the one before is not sent again.
func (m *mover) begin(now int64, pass message.Passing) {
	for p, at := range m.read {
		switch {
		case pass.Role.By != "" && m.pass.Role.By != "" && pass.Role.By != m.pass.Role.By:
			m.since[p] = math.MinInt64 // of an attempt that has failed
		case at != 0 && m.open[p] == 0 && len(m.keys) == 0, at != 0 && m.open[p] == 0 && m.part != p:
			m.since[p] = at
		}
	}
	clear(m.read)
	clear(m.open)
	clear(m.batches)
	m.pass, m.keys, m.began, m.problem = pass, nil, now, ""
}

// done reports whether the counters of partition p have arrived.
func (m *mover) done(p int) bool {
	return m.read[p] != 0 && m.open[p] == 0 && (len(m.keys) == 0 || m.part != p)
}

// moved returns which partitions' counters this node has moved in this step.
func (n *Node) moved() (x message.Moved) {
	v := n.roles.view.Load()
	if v == nil || v.pass == (message.Passing{}) {
		return x
	}
	m := n.roles.movers[ofAt(v.pass.Role)]
	if m == nil || m.pass != v.pass {
		return x
	}
	bits := newBitmap(len(m.read))
	for p := range m.read {
		if m.done(p) {
			bits.set(p)
		}
	}
	return message.Moved{Passing: m.pass, Bits: bits, Problem: m.problem}
}

func ofAt(r message.Role) message.Role { return message.Role{Of: r.Of, At: r.At} }

// finished reports whether this node has moved all that it has.
func (m *mover) finished(r *routing) bool {
	for p := range m.read {
		if int(r.owners[p]) == r.self && !m.done(p) {
			return false
		}
	}
	return true
}

// moveCounters sends counters whose keys another region decides, or is to decide.
func (n *Node) moveCounters(now int64, r *routing) {
	v, self := n.roles.known(), n.cfg.Regions.Self()
	wanted := map[message.Role]message.Passing{}
	for _, role := range v.set.Roles {
		if role.At != self {
			wanted[ofAt(role)] = message.Passing{}
		}
	}
	if v.pass.Role.At != self && v.pass.Role.At != "" {
		wanted[ofAt(v.pass.Role)] = v.pass
	}
	for _, p := range v.begun {
		old := n.roles.begun[p.Name]
		n.roles.begun[p.Name] = p.Boot
		again := old != "" && old != p.Boot && p.Name != self
		if again { // what was sent there is lost, and so are the records of keys
			maps.DeleteFunc(n.roles.movers, func(role message.Role, _ *mover) bool { return role.At == p.Name })
		}
		role := message.Role{Of: p.Name, At: p.Name}
		if m := n.roles.movers[role]; again || m != nil && !m.finished(r) {
			if _, ok := wanted[role]; !ok {
				wanted[role] = message.Passing{}
			}
		}
	}
	for role := range n.roles.movers {
		if _, ok := wanted[role]; !ok {
			delete(n.roles.movers, role)
		}
	}
	for role, pass := range wanted {
		m := n.roles.movers[role]
		if m == nil {
			m = newMover(role, len(r.owners))
			n.roles.movers[role] = m
			m.begin(now, pass)
		}
		if idle := len(m.batches) == 0 && len(m.keys) == 0; m.pass != pass || pass.Role.By == "" && idle && now-m.began >= int64(moveAgain) {
			m.begin(now, pass)
		}
		if pass.Role.By != "" && !pass.Sealed && now-m.began < n.longestRegionLease() {
			continue // other regions return what they have leased
		}
		n.turnMover(now, r, m)
	}
}

// longestRegionLease is how long a lease of a region lasts at most, in ns.
func (n *Node) longestRegionLease() (longest int64) {
	for _, region := range n.cfg.Regions.Others() {
		longest = max(longest, int64(lease.RegionLife(n.cfg.Regions.RTT(region))))
	}
	return longest
}

// passesOn reports whether this region is passing on the role of q's home. Meanwhile it makes no leases for other regions.
func (n *Node) passesOn(q *bucket.Request) bool {
	v := n.roles.view.Load()
	return v != nil && v.pass.Role.By != "" && v.pass.Role.At != n.cfg.Regions.Self() && v.pass.Role.Of == n.home(q)
}

// turnMover sends what is due of m.
func (n *Node) turnMover(now int64, r *routing, m *mover) {
	for _, b := range m.batches {
		if now-b.sent >= int64(resendAfter+4*n.cfg.Regions.RTT(m.role.At)) {
			n.sendCounters(now, m, b)
		}
	}
	for len(m.batches) < moveBatches {
		b := n.nextCounters(now, r, m)
		if b == nil {
			return
		}
		n.roles.batches++
		b.counters.Batch.N = n.roles.batches
		m.batches[n.roles.batches] = b
		n.sendCounters(now, m, b)
	}
}

func (n *Node) sendCounters(now int64, m *mover, b *moveBatch) {
	b.sent = now
	c := b.counters
	c.Batch.Age = now - b.made
	n.cfg.Regions.Post(m.role.At, &message.RegionMessages{From: message.Peer{Name: n.cfg.Regions.Self()}, Counters: &c})
}

// nextCounters returns the next batch of m, nil if there is none now.
func (n *Node) nextCounters(now int64, r *routing, m *mover) *moveBatch {
	b := &moveBatch{counters: message.RoleCounters{From: n.cfg.Name, Partitions: len(r.owners)}, made: now}
	body, began := &b.counters.Batch, n.cfg.Clock()
	records := n.recordLimits(m.role.Of)
	of := func(l *bucket.Limits) bool { return l.Home() == m.role.Of && !l.Equal(records) }
	for p := range m.read {
		if len(m.keys) > 0 && p != m.part || len(m.keys) == 0 && (m.read[p] != 0 || int(r.owners[p]) != r.self) {
			continue
		}
		at := n.cfg.Clock()
		if !moveBounds.Fits(&body.Image) || at-began > int64(exportTime) {
			break
		}
		if len(m.keys) == 0 {
			m.part, m.keys, m.read[p] = p, n.table.KeysOf(p, m.since[p], of, nil), at
			m.keys = append(m.keys, n.settled(at, p, m.since[p], records)...)
			m.keys = append(m.keys, n.roaming(at, p, m.since[p], m.role.Of, m.pass.Role.By != "")...)
		}
		if len(m.keys) > 0 {
			bytes, counters := len(body.Image.Data), body.Image.Counters
			k, _ := n.table.ExportSome(now, p, m.keys, &body.Image, moveBounds)
			m.keys = m.keys[k:]
			body.Parts = append(body.Parts, message.Part{
				Partition: p, Kind: message.Merge, Counters: body.Image.Counters - counters, Bytes: len(body.Image.Data) - bytes,
			})
			b.missing = append(b.missing, p)
			m.open[p]++
		}
		if n.table.Sealed(p) || !n.mayDecide(n.cfg.Clock()) {
			m.keys, m.read[p] = nil, 0 // another node may own it
		}
	}
	if len(body.Parts) == 0 {
		return nil
	}
	return b
}

// countersTaken notes which counters the region from has.
func (n *Node) countersTaken(from string, t *message.CountersTaken) {
	n.counterTaken(from, t)
	for _, m := range n.roles.movers {
		b := m.batches[t.N]
		if b == nil || m.role.At != from {
			continue
		}
		if t.Problem != "" {
			m.problem = t.Problem
		}
		b.missing = slices.DeleteFunc(b.missing, func(p int) bool {
			taken := slices.Contains(t.Partitions, p)
			if taken {
				m.open[p]--
			}
			return taken
		})
		if len(b.missing) == 0 {
			delete(m.batches, t.N)
		}
	}
}

// takesKeys reports whether keys may move to this region: it keeps those of its home, so that their counters stay too.
func (n *Node) takesKeys(now int64) bool {
	v, self := n.roles.view.Load(), n.cfg.Regions.Self()
	_, may := n.mayPlay(now, self)
	return may && v.pass.Role.Of != self
}

// takeCounters merges counters of another region into the partitions that this node owns. With outside, they are not passed on yet.
func (n *Node) takeCounters(now int64, r *routing, outside bool, m *message.RegionMessages) {
	c := m.Counters
	taken := &message.CountersTaken{To: c.From, N: c.Batch.N}
	if c.Partitions != len(r.owners) {
		taken.Problem = fmt.Sprintf("regions with different --partitions cannot pass on roles with their counters: %s has %d, %s has %d",
			m.From.Name, c.Partitions, n.cfg.Regions.Self(), len(r.owners))
		c.Batch.Parts = nil
	}
	others := map[int]*message.RoleCounters{}
	data := c.Batch.Image.Data
	for i := range c.Batch.Parts {
		part := &c.Batch.Parts[i]
		portion := data[:part.Bytes]
		data = data[part.Bytes:]
		if part.Partition >= len(r.owners) {
			continue
		}
		switch owner := int(r.owners[part.Partition]); {
		case owner == r.self && c.Key && !n.takesKeys(now):
			taken.Problem = "the region passes on the keys of its home"
		case owner == r.self && n.mayDecide(now):
			err := n.table.MergeOpen(now-c.Batch.Age, part.Partition, &c.Batch.Image, portion, part.Counters)
			if err == nil {
				taken.Partitions = append(taken.Partitions, part.Partition)
			} else if !errors.Is(err, bucket.ErrSealed) {
				taken.Problem = fmt.Sprintf("partition %d: %v", part.Partition, err)
			}
		case owner != r.self && owner != noNode && outside:
			o := others[owner]
			if o == nil {
				o = &message.RoleCounters{Key: c.Key, From: c.From, Partitions: c.Partitions, Batch: message.TransferBatch{
					N: c.Batch.N, Age: c.Batch.Age, Image: bucket.Image{Limits: slices.Clone(c.Batch.Image.Limits)},
				}}
				others[owner] = o
			}
			o.Batch.Parts = append(o.Batch.Parts, *part)
			o.Batch.Image.Data = append(o.Batch.Image.Data, portion...)
			o.Batch.Image.Counters += part.Counters
		}
	}
	for owner, o := range others {
		n.post(r, owner, &message.RegionMessages{From: m.From, Counters: o})
	}
	if len(taken.Partitions) > 0 || taken.Problem != "" {
		n.cfg.Regions.Post(m.From.Name, &message.RegionMessages{From: message.Peer{Name: n.cfg.Regions.Self()}, Taken: taken})
	}
}
