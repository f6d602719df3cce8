// Package peer carries what nodes say to each other: records, which are checks
// that another node is asked to decide, with their replies; and mail, the messages
// by which nodes agree on who may decide. Server answers and takes in what other
// nodes send, Pool sends. Both speak peer.v1 over long-lived gRPC streams.
//
// Of records, it decides when a frame leaves and what may be in it. While fewer than
// two frames are unanswered a record is sent at once; otherwise it gathers with others
// until an answer comes back. There is no timer: the answers are the clock. It
// also decides whether a peer may be talked to at all (Hello). Which node is asked,
// and what is tried again, is the caller's business; what a record is worth is the
// check.Handler's.
//
// A record is never sent twice by this package. A call that fails says whether its
// records may have been charged: check.ErrUnsent or check.ErrAmbiguous.
//
// Of mail, it decides what is dropped: what finds a full queue, or no connection and
// none to be had. Nobody is told, because those who write it stand losses. Transfer batches,
// which are large, wait in a queue of their own, and whatever else there is goes
// before them. What a message means is the Mailbox's business.
//
// To each address there are up to three streams, each on a connection of its own, so
// that none waits for another: records that are answered at once, records that are
// Sync and whose holder may take its time, and mail.
//
// Goroutines: the Server's are those of its grpc.Server and end with Close. The
// Pool has two per stream, and Close waits for them. A frame of records is encoded and
// sent by the goroutine of a caller where that cannot block; mail always by one of
// the Pool's.
//
// Locks: Pool.mu before link.mu. call.mu and outbox.mu are taken with no other held. None
// is held while a message is sent or awaited.
package peer
