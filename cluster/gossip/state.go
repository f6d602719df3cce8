package gossip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/sluice-project/sluice/internal/member"
)

const (
	// leaveTimeout bounds each of the two announcements of Leave.
	leaveTimeout = time.Second
	// repeatAfter is when a state is told once more, in gossip intervals: when the
	// first message is through, or lost.
	repeatAfter = 5
)

// turn is a mutex of capacity 1. Owners wait for time to pass, which a
// testing/synctest bubble sees in a channel but not in a sync.Mutex.
type turn chan struct{}

func (t turn) take() { t <- struct{}{} }

func (t turn) tryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) give() { <-t }

// SetState tells the others what this node is doing now: joining, which it
// starts with, then serving, then leaving. States only go forward, and serving is
// rejected before Ready. It returns without waiting for the update to spread, which
// takes about two gossip intervals.
func (g *Gossip) SetState(s member.State) error {
	g.announce.take()
	defer g.announce.give()
	// UpdateNode takes no wait of zero; the update is under way when it returns.
	return g.announceLocked(s, time.Nanosecond)
}

// announceLocked sets the state and waits at most so long until the update is out.
// It requires that g.announce is held.
func (g *Gossip) announceLocked(s member.State, wait time.Duration) error {
	changed, err := g.change(s)
	if err != nil || !changed {
		return err
	}
	// The only error is that the wait was too short. The update goes out all the same.
	_ = g.list.UpdateNode(wait)
	g.publish()
	signal(g.repeat)
	g.log.Info("state changed", "state", s.String())
	return nil
}

// repeatState tells the others once more what this node is doing. memberlist's
// queue of updates loses a message now and then: whenever it is empty for a moment,
// also while messages are taken out to be put back, its numbering starts afresh,
// and messages of the same length then take each other's place. Only the origin
// can make that good before the next whole exchange of state.
func (g *Gossip) repeatState() {
	if !g.announce.tryTake() {
		signal(g.repeat) // something is being told now; come back
		return
	}
	defer g.announce.give()
	if !g.left && g.Err() == nil {
		_ = g.list.UpdateNode(time.Nanosecond)
	}
}

// change sets the state and the metadata.
func (g *Gossip) change(s member.State) (changed bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.mu.self.State
	switch {
	case g.mu.closed:
		return false, fmt.Errorf("gossip: set state %s: %w", s, ErrClosed)
	case s == now:
		return false, nil
	case s == member.Leaving && (errors.Is(g.mu.err, ErrDuplicateName) || g.mu.waits != ""):
		return false, nil // the name is another's, and the update would be taken for its
	case s < now || s > member.Leaving:
		return false, fmt.Errorf("gossip: set state %s: it is %s already, and states only go forward", s, now)
	case s == member.Serving && g.mu.err != nil:
		return false, g.mu.err
	case s == member.Serving && !g.mu.ready:
		return false, fmt.Errorf("gossip: set state %s: call Ready first", s)
	}
	next := g.mu.self
	next.State = s
	meta, err := g.encode(next)
	if err != nil {
		return false, err
	}
	g.mu.self = next
	g.meta.Store(&meta)
	return true, nil
}

// Leave tells the others that this node is gone: they drop it from their views at
// once. It waits until the update is out, at most 2 s or as long as ctx allows.
// Announce the state Leaving earlier, when others should stop sending work. Close
// must still be called. Calling Leave again does nothing.
func (g *Gossip) Leave(ctx context.Context) error {
	g.announce.take()
	defer g.announce.give()
	if g.left {
		return nil
	}
	// Those who never hear of the state Leaving would take this node for lost.
	if err := g.announceLocked(member.Leaving, timeLeft(ctx)); err != nil {
		return err
	}
	g.stopJoining()
	g.left = true
	// Where all leave at once, those who were to hear it may be gone by now.
	if err := g.list.Leave(timeLeft(ctx)); err != nil && !g.registry.alone() {
		return fmt.Errorf("gossip: leave: %w", err)
	}
	return nil
}

// timeLeft returns how long one announcement may take.
func timeLeft(ctx context.Context) time.Duration {
	wait := leaveTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	if ctx.Err() != nil {
		wait = 0
	}
	return max(wait, time.Nanosecond) // memberlist takes 0 for no limit
}

// metaFormat is the first byte of the metadata. Nodes that write another one
// reject each other, so it is raised only when the two cannot be kept apart
// otherwise.
const metaFormat = 2

// metadata is what a node tells about itself through memberlist. The gossip
// address is not in it: memberlist carries that itself.
type metadata struct {
	member    member.Member // without Gossip
	placement uint32
}

// encodeMeta writes: format, state, placement as 4 bytes little endian,
// then name, boot, peer, gRPC, HTTP and version, each with its
// length in one byte before it. The zone follows only where there is one: nodes that do not know zones reject
// metadata that goes on.
func encodeMeta(m metadata) ([]byte, error) {
	b := make([]byte, 0, memberlist.MetaMaxSize)
	b = append(b, metaFormat, byte(m.member.State))
	b = binary.LittleEndian.AppendUint32(b, m.placement)
	texts := m.texts()
	if m.member.Zone != "" {
		texts = append(texts, &m.member.Zone)
	}
	for _, s := range texts {
		if len(*s) > 255 {
			return nil, fmt.Errorf("%q is %d bytes long: want at most 255", *s, len(*s))
		}
		b = append(b, byte(len(*s)))
		b = append(b, *s...)
	}
	if len(b) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("%d bytes of metadata: want at most %d: use shorter names", len(b), memberlist.MetaMaxSize)
	}
	return b, nil
}

// decodeMeta reads what encodeMeta writes and nothing else.
func decodeMeta(b []byte) (metadata, error) {
	var m metadata
	if len(b) == 0 {
		return m, errors.New("metadata is empty")
	}
	if b[0] != metaFormat {
		return m, fmt.Errorf("metadata has format %d, ours is %d", b[0], metaFormat)
	}
	if len(b) < 2+4 {
		return m, errors.New("metadata is cut short")
	}
	m.member.State = member.State(b[1])
	if m.member.State > member.Leaving {
		return m, fmt.Errorf("metadata has state %d: want 0 to %d", b[1], member.Leaving)
	}
	m.placement = binary.LittleEndian.Uint32(b[2:])
	b = b[6:]
	for i, s := range append(m.texts(), &m.member.Zone) {
		if i == len(m.texts()) && (len(b) == 0 || b[0] == 0) {
			break // no zone
		}
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return m, errors.New("metadata is cut short")
		}
		*s = string(b[1 : 1+int(b[0])])
		b = b[1+len(*s):]
	}
	if len(b) != 0 {
		return m, fmt.Errorf("metadata has %d bytes too many", len(b))
	}
	if err := ValidateName(m.member.Name); err != nil {
		return m, fmt.Errorf("name in metadata: %w", err)
	}
	if err := ValidateZone(m.member.Zone); err != nil {
		return m, fmt.Errorf("zone in metadata: %w", err)
	}
	if !validBoot(m.member.Boot) {
		return m, fmt.Errorf("boot id in metadata: %q", m.member.Boot)
	}
	return m, nil
}

// texts lists the fields of text in their order on the wire.
func (m *metadata) texts() []*string {
	p := &m.member
	return []*string{&p.Name, &p.Boot, &p.Peer, &p.GRPC, &p.HTTP, &p.Version}
}

// delegate is what memberlist calls, mostly under its own lock. It only writes to
// the registry and signals.
type delegate struct{ g *Gossip }

var (
	_ memberlist.Delegate      = delegate{}
	_ memberlist.EventDelegate = delegate{}
	_ memberlist.AliveDelegate = delegate{}
	_ memberlist.MergeDelegate = delegate{}
)

// NodeMeta returns what others are told about this node.
func (d delegate) NodeMeta(int) []byte { return *d.g.meta.Load() }

// NotifyMsg takes challenges and answers, and keeps nothing of the memory that it is given.
func (d delegate) NotifyMsg(message []byte) { d.g.receive(message) }

// GetBroadcasts: nothing of this package's own is passed on.
func (d delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState is handed to whoever exchanges state with us: who we are. It is how
// a node that finds itself among its join targets notices.
func (d delegate) LocalState(bool) []byte { return []byte(d.g.registry.self) }

// MergeRemoteState is called when an exchange of state with a peer was accepted
// and merged: by now the registry has all that the peer knows. A peer that listens
// but does not know itself yet has said nothing, and counts when it says more.
func (d delegate) MergeRemoteState(from []byte, _ bool) {
	if d.g.registry.met(string(from)) {
		signal(d.g.answered)
	}
}

// NotifyAlive rejects a peer that does not fit.
func (d delegate) NotifyAlive(node *memberlist.Node) error {
	_, err := admit(d.g.config, node)
	if err != nil {
		d.g.registry.reject(node.Address(), err)
	}
	return err
}

// NotifyMerge rejects a cluster with a member that does not fit. It is
// called on both sides, with all that the other side knows.
func (d delegate) NotifyMerge(nodes []*memberlist.Node) error {
	for _, node := range nodes {
		if node.State != memberlist.StateAlive {
			continue
		}
		if err := d.NotifyAlive(node); err != nil {
			return err
		}
	}
	return nil
}

// NotifyJoin and NotifyUpdate copy the node: memberlist goes on to change it.
func (d delegate) NotifyJoin(node *memberlist.Node) {
	if m, err := admit(d.g.config, node); err == nil {
		d.g.registry.put(m)
	}
}

func (d delegate) NotifyUpdate(node *memberlist.Node) { d.NotifyJoin(node) }

func (d delegate) NotifyLeave(node *memberlist.Node) { d.g.registry.remove(node.Name) }

// signal makes a receive on c succeed once, now or later.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
