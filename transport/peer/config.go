// Package peer is the protocol between nodes: records, which are checks for another node to decide, with their replies; and
// control messages, by which nodes agree on who may decide. A Pool sends, a Server receives; both speak peer.v1 over
// long-lived gRPC streams. They decide whether a peer is accepted at all (Hello).
//
// A record is sent at once while fewer than two frames are unanswered; otherwise it waits for a reply, or until 10 to 100 ms have
// passed since the last frame (see freeInFlight), and is sent with the others that wait. The Pool retries nothing: the error of a
// call says whether its records may have been charged (check.ErrAmbiguous) or not (check.ErrUnsent). The caller chooses the node.
//
// A control message is dropped if its queue is full, or if there is no connection and none can be made. The sender is not
// told, because the membership protocol tolerates losses. Bulky messages wait in a queue of their own, behind all others.
//
// To each address there are up to four streams, each on a connection of its own, so that none waits for another: records that
// are answered at once, records that are Sync or Relay, control messages, and copies of control messages.
//
// Goroutines: the Server's are those of its grpc.Server and end with Close. The Pool has two per stream, and Close waits for
// them. A caller's goroutine encodes and sends records where that cannot block; control messages are sent by the Pool's.
//
// Locks: Pool.mu before link.mu. call.mu and outbox.mu are taken with no other held. None is held while a message is sent or
// awaited.
package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/tracing"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Bounds of one frame and one stream.
const (
	// MaxRecords is the most records that a Server takes in one frame.
	MaxRecords = 16_384
	// maxGather is the most records that a Pool puts into one frame, and the most sets of limits that a frame defines.
	maxGather = message.MaxSets
	// maxLimitIDs is the highest number that a stream can give to limits.
	maxLimitIDs = 2 * maxGather
	// defaultMaxLimits is the default of Config.MaxLimits.
	defaultMaxLimits = 16_384
	// maxFrameLimits is the most limits that the records of a frame have.
	maxFrameLimits = 8192
	// freeInFlight is the number of unanswered frames of a stream up to which records are sent at once. Above it, up to maxInFlight,
	// framesPerTrip frames are sent per round trip, minFrameInterval to maxFrameInterval apart. So a record waits for little more
	// than a round trip, and no more packets are in flight than TCP sends at once on a new connection (RFC 6928).
	freeInFlight     = 2
	maxInFlight      = 128
	framesPerTrip    = 4
	minFrameInterval = 10 * time.Millisecond
	maxFrameInterval = 100 * time.Millisecond
	// maxFrameBytes bounds a message in either direction. The largest frame that a Pool makes is smaller.
	maxFrameBytes = 16 << 20
)

// Config describes this node to its peers and how it reaches them. The Server and the Pool of a node have the same.
type Config struct {
	// Name and Boot are this process's, as in member.Member. Required.
	Name, Boot string
	// Region is the name of the region that this node's cluster is; empty if there is one region only.
	Region string
	// HasRegion reports whether a name is that of another region, whose nodes may send records that are Relay, and requests about
	// regions. It is called at every hello, from any goroutine. Nil knows none.
	HasRegion func(name string) bool
	// Placement is the number of the placement rules (hashing, ring). Nodes with another one are rejected.
	Placement uint32
	// ProofKeys returns the keys, at least one, that prove knowledge of the cluster secret. The first one makes this node's
	// proofs; all of them verify those of others, so a secret can be rotated node by node. It is called at every hello, from
	// any goroutine, and its result must not change. Required.
	ProofKeys func() [][]byte
	// CountersTag stands for the secret that counter keys are made with. It is never sent; nodes with another one are rejected.
	CountersTag []byte

	// Credentials secure connections both ways. Nil is plain TCP.
	Credentials credentials.TransportCredentials
	// CheckName returns why the other end of a connection secured by Credentials is not the node of that name and region, or nil. It is
	// called on both ends, before anything but hellos is exchanged. Nil accepts every name.
	CheckName func(name, region string, auth credentials.AuthInfo) error
	// Dial opens a connection to a peer's address. Nil dials TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// DialTimeout bounds one attempt to connect, hello and proof included: three round trips, four with TLS. The bound is
	// shorter if the last attempt was much faster. 0 means 3 s.
	DialTimeout time.Duration
	// MaxQueue is the most records that may wait for one peer; more are rejected with check.ErrOverloaded. 0 means 65,536. At
	// least 4096.
	MaxQueue int
	// MaxLimits is the number of limits at which a stream of a Pool forgets its numbered sets; the other end keeps those of one
	// more frame. A Server shares as many sets between streams. 0 means 16,384.
	MaxLimits int
	// ControlQueue takes the control messages of peers. Nil ignores them.
	ControlQueue ControlQueue
	// Answer answers a request of a peer, until ctx ends; nil means no answer. It is called from up to MaxRequests goroutines
	// at a time. Nil answers nothing.
	Answer func(ctx context.Context, request message.Body) message.Body
	// Tracer makes the spans of a Server's replies to records with a trace. Nil records nothing.
	Tracer *tracing.Tracer
	// Log gets a line when a peer is rejected or lost. Nil logs nothing.
	Log *slog.Logger
}

// Validate reports the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Name == "" || len(c.Name) > maxHelloText:
		return fmt.Errorf("peer: Name: %d bytes; want 1 to %d", len(c.Name), maxHelloText)
	case c.Boot == "" || len(c.Boot) > maxHelloText:
		return fmt.Errorf("peer: Boot: %d bytes; want 1 to %d", len(c.Boot), maxHelloText)
	case c.ProofKeys == nil || len(c.ProofKeys()) == 0:
		return errors.New("peer: ProofKeys: no key; want one at least")
	case c.DialTimeout < 0:
		return errors.New("peer: DialTimeout: negative; want a duration, or 0 for the default")
	case c.MaxLimits < 0:
		return fmt.Errorf("peer: MaxLimits: %d; want more than 0, or 0 for the default", c.MaxLimits)
	case c.MaxQueue < 0 || c.MaxQueue > 0 && c.MaxQueue < maxGather:
		return fmt.Errorf("peer: MaxQueue: %d; want at least %d, or 0 for the default", c.MaxQueue, maxGather)
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.MaxLimits = cmp.Or(c.MaxLimits, defaultMaxLimits)
	c.MaxQueue = cmp.Or(c.MaxQueue, 65_536)
	c.DialTimeout = cmp.Or(c.DialTimeout, 3*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	return c
}
