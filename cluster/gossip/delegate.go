package gossip

import "github.com/hashicorp/memberlist"

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
