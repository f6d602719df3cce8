// Package peer carries what nodes say to each other: records, which are checks
// that another node is asked to decide, with their replies; and control messages, the messages
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
// Of control messages, it decides what is dropped: what finds a full queue, or no connection and
// none to be had. Nobody is told, because those who write it stand losses. Transfer batches,
// which are large, wait in a queue of their own, and whatever else there is goes
// before them. What a message means is the ControlQueue's business.
//
// To each address there are up to three streams, each on a connection of its own, so
// that none waits for another: records that are answered at once, records that are
// Sync and whose owner may take its time, and control messages.
//
// Goroutines: the Server's are those of its grpc.Server and end with Close. The
// Pool has two per stream, and Close waits for them. A frame of records is encoded and
// sent by the goroutine of a caller where that cannot block; control messages always by one of
// the Pool's.
//
// Locks: Pool.mu before link.mu. call.mu and outbox.mu are taken with no other held. None
// is held while a message is sent or awaited.
package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/tracing"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Bounds of one frame and one stream.
const (
	// MaxRecords is the most records that a Server takes in one frame.
	MaxRecords = 16_384
	// maxGather is the most records that a Pool puts into one frame. It is also
	// how many limits a stream can define before it numbers anew, so that the
	// numbers in a frame cannot change their meaning within it.
	maxGather = message.MaxSets
	// maxLimitIDs is the highest number that a stream can give to limits.
	maxLimitIDs = 2 * maxGather
	// usualMaxLimits is the default of Config.MaxLimits.
	usualMaxLimits = 16_384
	// maxFrameLimits is the most limits that the records of a frame have.
	maxFrameLimits = 8192
	// maxFlying is how many frames of a stream may be unanswered. Where answers take long another one follows each
	// pace, or framesPerTrip in the round trips that the last answer took, each longestPace at the latest, up to mostFlying:
	// a record waits for little more than a round trip, and no more packets are under way than TCP sends at once when a
	// connection is new (RFC 6928), or when BBR measures the round trip (four packets).
	maxFlying     = 2
	mostFlying    = 128
	framesPerTrip = 4
	pace          = 10 * time.Millisecond
	longestPace   = 100 * time.Millisecond
	// maxFrameBytes bounds a message of either direction. The largest frame that
	// a Pool makes, every record with other limits, stays below it.
	maxFrameBytes = 16 << 20
)

// Config says who this node is to its peers and how it reaches them. A Server and
// a Pool of one node have the same.
type Config struct {
	// Name and Boot are this process's, as in member.Member. Required.
	Name, Boot string
	// Placement is the number of the placement rules (hashing, ring). Nodes with
	// another one are rejected.
	Placement uint32
	// ProofKeys returns the keys that nodes prove with that they know the cluster secret, at least one. The first makes this
	// node's proofs, all check those of others, so that a secret can be replaced node by node. It is asked at every hello,
	// from any goroutine; what it returned is not changed. Required.
	ProofKeys func() [][]byte
	// CountersTag stands for the secret that counter keys are made with. It is never sent; nodes with another one are rejected.
	CountersTag []byte

	// Credentials secure connections both ways. Nil is plain TCP.
	Credentials credentials.TransportCredentials
	// CheckName reports why the other side of a connection, which Credentials have secured, is not the
	// node of that name, or nil. It is asked in both directions, before anything but hellos is
	// exchanged. Nil believes every name.
	CheckName func(name string, auth credentials.AuthInfo) error
	// Dial opens a connection to a peer's address. Nil dials TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// DialTimeout bounds one attempt to connect, hello and proof included: three round trips, four with TLS. Where the one
	// before was much faster, it is bounded by less. 0 means 3 s.
	DialTimeout time.Duration
	// StallTimeout is the age of an unanswered frame at which a call that gives up
	// also gives up the stream. 0 means 2 s.
	StallTimeout time.Duration
	// MaxQueue is the most records that may wait for one peer; what comes on top
	// is rejected with check.ErrOverloaded. 0 means 65,536. At least 4096.
	MaxQueue int
	// MaxLimits is at how many limits of the sets that it has numbers for a stream of a Pool forgets them; the other end keeps those of a frame more.
	// A Server recognizes as many sets that were on other streams. 0 means 16,384.
	MaxLimits int
	// ControlQueue takes what peers post to a Server. Nil ignores it.
	ControlQueue ControlQueue
	// Answer answers a question of a peer, until ctx ends; nil is no answer. It is called from many goroutines, at most MaxQuestions
	// at a time. Nil answers nothing.
	Answer func(ctx context.Context, question message.Body) message.Body
	// Tracer records what a Server answers to records of a trace. Nil records nothing.
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
	case c.StallTimeout < 0:
		return errors.New("peer: StallTimeout: negative; want a duration, or 0 for the default")
	case c.MaxLimits < 0:
		return fmt.Errorf("peer: MaxLimits: %d; want more than 0, or 0 for the default", c.MaxLimits)
	case c.MaxQueue < 0 || c.MaxQueue > 0 && c.MaxQueue < maxGather:
		return fmt.Errorf("peer: MaxQueue: %d; want at least %d, or 0 for the default", c.MaxQueue, maxGather)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	if c.MaxLimits == 0 {
		c.MaxLimits = usualMaxLimits
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 3 * time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 2 * time.Second
	}
	if c.MaxQueue == 0 {
		c.MaxQueue = 65_536
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
