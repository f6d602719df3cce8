package gossip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/sluicecluster/sluice/internal/member"
)

const (
	// leaveTimeout bounds each of the two announcements of Leave.
	leaveTimeout = time.Second
	// repeatAfter is when a state is announced once more: the first message has arrived by then, or is lost.
	repeatAfter = 5 * gossipInterval
)

// SetState announces this node's state: joining, which it starts with, then serving, then leaving. States only go forward,
// and serving is rejected before Ready. It does not wait for the update to spread, which takes about two gossip intervals.
func (g *Gossip) SetState(s member.State) error {
	g.announce <- struct{}{}
	defer func() { <-g.announce }()
	// UpdateNode takes no wait of zero; the update is under way when it returns.
	return g.announceLocked(s, time.Nanosecond)
}

// announceLocked sets the state and waits until the update is out, at most for wait. It requires that g.announce is held.
func (g *Gossip) announceLocked(s member.State, wait time.Duration) error {
	changed, err := g.change(s)
	if err != nil || !changed {
		return err
	}
	_ = g.list.UpdateNode(wait) // the only error is a timeout, and the update goes out nevertheless
	g.publish()
	signal(g.repeat)
	g.log.Info("state changed", "state", s.String())
	return nil
}

// repeatState announces this node's state once more. memberlist's queue of updates can lose a message: when the queue is
// empty for a moment, its numbering starts again, and messages of the same length then replace each other.
func (g *Gossip) repeatState() {
	select {
	case g.announce <- struct{}{}:
		defer func() { <-g.announce }()
	default:
		signal(g.repeat) // another announcement is in progress
		return
	}
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
		return false, nil // the others would take it for an update of the other process of this name
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

// Leave announces that this node is gone, so that the others drop it from their views at once. It waits until the update is
// out, at most 2 s or as long as ctx allows. Set the state Leaving earlier, so that others stop sending work. Close must still
// be called. Calling Leave again does nothing.
func (g *Gossip) Leave(ctx context.Context) error {
	g.announce <- struct{}{}
	defer func() { <-g.announce }()
	if g.left {
		return nil
	}
	// Nodes that never hear of the state Leaving would take this node for lost.
	if err := g.announceLocked(member.Leaving, timeLeft(ctx)); err != nil {
		return err
	}
	g.stopJoining()
	g.left = true
	// If all nodes leave at once, there may be none left to hear it.
	if err := g.list.Leave(timeLeft(ctx)); err != nil && len(g.registry.members()) > 0 {
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

// metaFormat is the first byte of the metadata. Nodes of different formats reject each other.
const metaFormat = 2

// metadata describes a node to others through memberlist, which carries the gossip address itself.
type metadata struct {
	member    member.Member // without Gossip
	placement uint32
	region    string
}

// encodeMeta writes: format, state, placement as 4 bytes little endian, then name, boot, peer, gRPC, HTTP and version, each
// with its length in one byte before it, and the zone and the region as far as there are any.
func encodeMeta(m metadata) ([]byte, error) {
	b := make([]byte, 0, memberlist.MetaMaxSize)
	b = append(b, metaFormat, byte(m.member.State))
	b = binary.LittleEndian.AppendUint32(b, m.placement)
	texts := m.texts()
	if m.member.Zone != "" || m.region != "" {
		texts = append(texts, &m.member.Zone)
	}
	if m.region != "" {
		texts = append(texts, &m.region)
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

// decodeMeta reads metadata of encodeMeta, and rejects anything else.
func decodeMeta(b []byte) (metadata, error) {
	var m metadata
	switch {
	case len(b) == 0:
		return m, errors.New("metadata is empty")
	case b[0] != metaFormat:
		return m, fmt.Errorf("metadata has format %d, ours is %d", b[0], metaFormat)
	case len(b) < 2+4:
		return m, errors.New("metadata is cut short")
	case member.State(b[1]) > member.Leaving:
		return m, fmt.Errorf("metadata has state %d: want 0 to %d", b[1], member.Leaving)
	}
	m.member.State = member.State(b[1])
	m.placement = binary.LittleEndian.Uint32(b[2:])
	b = b[6:]
	needed := len(m.texts())
	for i, s := range append(m.texts(), &m.member.Zone, &m.region) {
		if i >= needed && (len(b) == 0 || b[0] == 0 && (i > needed || len(b) == 1)) {
			break // no zone or no region
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
	if err := validText(m.region, MaxName); err != nil {
		return m, fmt.Errorf("region in metadata: %w", err)
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

// delegate has memberlist's callbacks, most of which run under its lock. They only write to the registry and signal.
type delegate struct{ g *Gossip }

var (
	_ memberlist.Delegate      = delegate{}
	_ memberlist.EventDelegate = delegate{}
	_ memberlist.AliveDelegate = delegate{}
	_ memberlist.MergeDelegate = delegate{}
)

// NodeMeta returns the metadata of this node.
func (d delegate) NodeMeta(int) []byte { return *d.g.meta.Load() }

// NotifyMsg takes challenges and responses, and keeps no reference to message.
func (d delegate) NotifyMsg(message []byte) { d.g.receive(message) }

// GetBroadcasts returns nil: this package has no broadcasts of its own.
func (d delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState is sent to a peer that exchanges state with this node: its full name, by which it recognizes itself among its
// join targets.
func (d delegate) LocalState(bool) []byte { return []byte(d.g.registry.self) }

// MergeRemoteState is called after an exchange of state with a peer was accepted and merged into the registry. A peer that
// does not know itself yet does not count.
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

// NotifyMerge rejects a cluster with a member that does not fit. Both sides call it, with all members that the other knows.
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
