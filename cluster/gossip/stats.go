package gossip

// Stats are counters since Open, and figures of now.
type Stats struct {
	// Members is the size of the view; Lost are members that vanished without
	// leaving and are still tried.
	Members, Lost int
	// Refused counts messages from peers of another placement or format.
	Refused uint64
	// Malformed counts messages on the gossip port that are no gossip, or are encrypted with none of this
	// node's keys.
	Malformed uint64
	// TCPOnly counts probes of other nodes that were answered over TCP and not over UDP.
	TCPOnly uint64
	// RefusedStreams counts streams to the gossip port that were closed: too many, too long, or announcing
	// more than gossip has.
	RefusedStreams uint64
	// Unproven are processes that were heard of and have not answered this node yet. They are in no view. None
	// where gossip is not encrypted.
	Unproven int
	// Keys is the number of keys in force, and Primary names the one that encrypts.
	Keys    int
	Primary string
	// Joins counts attempts to reach targets and lost members; JoinsFailed those
	// that nobody answered or that were refused.
	Joins, JoinsFailed uint64
	// Health is memberlist's score of this node itself: 0 is well, higher means
	// that it misses answers it should have got.
	Health int
}

// Stats returns the counters.
func (g *Gossip) Stats() Stats {
	s := Stats{Members: len(g.View().Members), Health: g.list.GetHealthScore(), Malformed: g.library.malformed.Load(), TCPOnly: g.library.tcpOnly.Load()}
	if t, ok := g.transport.(*sockets); ok {
		s.RefusedStreams = t.gate.refused.Load()
	}
	g.registry.mu.Lock()
	s.Lost, s.Refused, s.Unproven = len(g.registry.mu.lost), g.registry.mu.refused, len(g.registry.mu.unproven)
	g.registry.mu.Unlock()
	k := g.Keyring()
	s.Keys, s.Primary = k.Len(), k.Primary()
	g.joiner.mu.Lock()
	s.Joins, s.JoinsFailed = g.joiner.mu.tries, g.joiner.mu.failed
	g.joiner.mu.Unlock()
	return s
}
