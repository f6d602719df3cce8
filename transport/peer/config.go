package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-project/sluice/internal/tracing"
)

// Bounds of one frame and one stream.
const (
	// MaxRecords is the most records that a Server takes in one frame.
	MaxRecords = 16_384
	// maxGather is the most records that a Pool puts into one frame. It is also
	// how many limits a stream can define before it numbers anew, so that the
	// numbers in a frame cannot change their meaning within it.
	maxGather = 4096
	// maxLimitIDs is the highest number that a stream can give to limits.
	maxLimitIDs = 2 * maxGather
	// maxFlying is how many frames of a stream may be unanswered. Where answers take long another one follows each
	// pace, or a paceShare-th of the time that the last answer took, at most longestPace, up to mostFlying: a record waits for
	// little more than a round trip, and no more packets are under way than a new TCP connection sends at once (RFC 6928).
	maxFlying   = 2
	mostFlying  = 128
	pace        = 10 * time.Millisecond
	paceShare   = 8
	longestPace = 50 * time.Millisecond
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
	// another one are refused.
	Placement uint32
	// Secret is the fingerprint of the cluster secret, not the secret. Nodes with
	// another one are refused.
	Secret []byte

	// Credentials secure connections both ways. Nil is plain TCP.
	Credentials credentials.TransportCredentials
	// CheckName reports why the other side of a connection, which Credentials have secured, is not the
	// node of that name, or nil. It is asked in both directions, before anything but hellos is
	// exchanged. Nil believes every name.
	CheckName func(name string, auth credentials.AuthInfo) error
	// Dial opens a connection to a peer's address. Nil dials TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// DialTimeout bounds one attempt to connect, Hello included: two round trips, three with TLS. Where the one
	// before was much faster, it is bounded by less. 0 means 1.5 s.
	DialTimeout time.Duration
	// StallTimeout is the age of an unanswered frame at which a call that gives up
	// also gives up the stream. 0 means 2 s.
	StallTimeout time.Duration
	// MaxQueue is the most records that may wait for one peer; what comes on top
	// is refused with check.ErrOverloaded. 0 means 65,536. At least 4096.
	MaxQueue int
	// Mailbox takes what peers post to a Server. Nil ignores it.
	Mailbox Mailbox
	// Tracer records what a Server answers to records of a trace. Nil records nothing.
	Tracer *tracing.Tracer
	// Log gets a line when a peer is refused or lost. Nil logs nothing.
	Log *slog.Logger
}

// Validate reports the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Name == "" || len(c.Name) > maxHelloText:
		return fmt.Errorf("peer: Name: %d bytes; want 1 to %d", len(c.Name), maxHelloText)
	case c.Boot == "" || len(c.Boot) > maxHelloText:
		return fmt.Errorf("peer: Boot: %d bytes; want 1 to %d", len(c.Boot), maxHelloText)
	case len(c.Secret) > maxHelloText:
		return fmt.Errorf("peer: Secret: %d bytes; want the fingerprint, at most %d", len(c.Secret), maxHelloText)
	case c.DialTimeout < 0:
		return errors.New("peer: DialTimeout: negative; want a duration, or 0 for the default")
	case c.StallTimeout < 0:
		return errors.New("peer: StallTimeout: negative; want a duration, or 0 for the default")
	case c.MaxQueue < 0 || c.MaxQueue > 0 && c.MaxQueue < maxGather:
		return fmt.Errorf("peer: MaxQueue: %d; want at least %d, or 0 for the default", c.MaxQueue, maxGather)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
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
