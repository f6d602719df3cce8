// Package peer carries records between nodes: Server answers the frames of other
// nodes, Pool sends frames to them. Both speak peer.v1 over long-lived
// bidirectional gRPC streams, one per pair of nodes and direction of asking.
//
// It decides when a frame leaves and what may be in it. While fewer than two
// frames are unanswered a record is sent at once; otherwise it gathers with others
// until an answer comes back. There is no timer: the answers are the clock. It
// also decides whether a peer may be talked to at all (Hello). Which node is asked,
// and what is tried again, is the caller's business; what a record is worth is the
// check.Handler's.
//
// A record is never sent twice by this package. A call that fails says whether its
// records may have been charged: check.ErrUnsent or check.ErrAmbiguous.
//
// Goroutines: the Server's are those of its grpc.Server and end with Close. The
// Pool has two per connected peer, and Close waits for them. A frame is encoded and
// sent by the goroutine of a caller where that cannot block.
//
// Locks: Pool.mu before link.mu. call.mu is taken with no other held. None is held
// while a message is sent or awaited.
package peer
