// Package inflow bounds the memory that incomplete messages of gRPC clients take. A Budget counts their bytes by call, connection
// and process as HTTP/2 frames arrive, and ends the calls that exceed it.
//
// gRPC renews the connection's flow-control window as soon as bytes arrive, so a client could otherwise begin a message on each of
// many calls and finish none. A Budget has no goroutine; its timers end with their connections.
package inflow

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
)

// Config are the bounds of a Budget. All numbers are required.
type Config struct {
	// Port names the server in log lines.
	Port string
	// Connection is the most bytes of the calls of one connection, and Process of all connections. While more than Process
	// is held, a connection holds at most its share of Process, or leastShare.
	Connection, Process int
	// Unknown is the most bytes of one call of an unknown client, and UnknownCalls the most such calls of one connection at
	// once. See Known.
	Unknown, UnknownCalls int
	// Deadline bounds the time of the message of a unary or server-streaming call, from its headers on.
	Deadline time.Duration
	// TrustKnown: calls of known clients are not counted, and have no deadline.
	TrustKnown bool
	// Memory bounds the decoded messages. The server's codec must know Message then. Nil bounds
	// nothing; it must be nil with TrustKnown.
	Memory *Memory
	// Log gets a line when a call is ended. Nil logs nothing.
	Log *slog.Logger
}

// leastShare is the least share of a connection, in bytes: a small message.
const leastShare = 16 << 10

// Reasons to end calls.
const (
	late = iota
	unknown
	connection
	process
	stray  // the connection is closed
	memory // its message is complete, and was not decoded
	reasons
)

var reasonNames = [reasons]string{"deadline", "unknown", "connection", "process", "stray", "memory"}

// Stats counts since New, except for Held.
type Stats struct {
	// Held is the number of bytes held now.
	Held int64
	// Ended are ended calls by reason: deadline, unknown, connection, process; stray counts connections closed because they
	// went on sending to ended calls, and memory complete messages for which there was no room.
	Ended Ended
}

// Ended are counts by reason.
type Ended [reasons]uint64

// All returns reasons and counts, in order.
func (e Ended) All() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for i, n := range e {
			if !yield(reasonNames[i], n) {
				return
			}
		}
	}
}

// Of returns the count of a reason.
func (e Ended) Of(reason string) uint64 { return maps.Collect(e.All())[reason] }

// Budget bounds the servers that have its Options. Make it with New. It is safe for concurrent use.
type Budget struct {
	config Config
	held   atomic.Int64
	open   atomic.Int64 // connections
	ended  [reasons]atomic.Uint64
	lines  *loglimit.Limiter
	// methods are those of Registrar, and whether their clients stream. They do not change while serving.
	methods map[string]bool
}

// New returns a Budget. The error names the first invalid field of c.
func New(c Config) (*Budget, error) {
	for _, one := range []struct {
		field string
		value int
	}{{"Connection", c.Connection}, {"Process", c.Process}, {"Unknown", c.Unknown}, {"UnknownCalls", c.UnknownCalls}, {"Deadline", int(c.Deadline)}} {
		if one.value < 1 {
			return nil, fmt.Errorf("inflow: %s: %d; want more than 0", one.field, one.value)
		}
	}
	if c.TrustKnown && c.Memory != nil {
		return nil, errors.New("inflow: Memory: set with TrustKnown; want nil")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Budget{config: c, lines: loglimit.New(logEvery), methods: map[string]bool{}}, nil
}

// logEvery is the least time between log lines about one reason.
const logEvery = 10 * time.Second

// Stats returns the counts.
func (b *Budget) Stats() Stats {
	s := Stats{Held: b.held.Load()}
	for i := range b.ended {
		s.Ended[i] = b.ended[i].Load()
	}
	return s
}

// Options returns the options of a server with the budget: its credentials, nil for plain TCP, and an interceptor of streams.
// The server's services must be registered with Registrar, and its tap handle must return the result of Begin.
func (b *Budget) Options(c credentials.TransportCredentials) []grpc.ServerOption {
	if c == nil {
		c = insecure.NewCredentials()
	}
	return []grpc.ServerOption{
		grpc.Creds(&secured{c, b}),
		grpc.ReadBufferSize(0), // conn has the buffer
		b.Streams(),
	}
}

// Streams is the option that counts the messages of streams: alone it is for a server whose
// connections are not counted.
func (b *Budget) Streams() grpc.ServerOption { return grpc.ChainStreamInterceptor(b.stream) }

// AuthInfo returns the inner AuthInfo of a connection with the credentials of Options.
func AuthInfo(a credentials.AuthInfo) credentials.AuthInfo {
	if own, ok := a.(*info); ok {
		return own.AuthInfo
	}
	return a
}

// info finds the connection of a call.
type info struct {
	credentials.AuthInfo
	conn *conn
}

// secured are credentials whose connections are counted.
type secured struct {
	credentials.TransportCredentials
	budget *Budget
}

// ServerHandshake implements credentials.TransportCredentials.
func (s *secured) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	inner, auth, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return inner, auth, err
	}
	c := newConn(inner, s.budget)
	return c, &info{auth, c}, nil
}

// Clone implements credentials.TransportCredentials.
func (s *secured) Clone() credentials.TransportCredentials {
	return &secured{s.TransportCredentials.Clone(), s.budget}
}

var (
	errManyUnknown = status.Error(codes.ResourceExhausted, "too many calls at once on a connection of a client that this node does not know")
	statuses       = [reasons]*status.Status{
		late:       status.New(codes.DeadlineExceeded, "the message took too long to arrive"),
		unknown:    status.New(codes.ResourceExhausted, "the message is too long for a client that this node does not know"),
		connection: status.New(codes.ResourceExhausted, "this connection has sent too much of messages that are not complete; send fewer at once, or over more connections"),
		process:    status.New(codes.ResourceExhausted, "clients have sent too much of messages that are not complete; send it again later"),
	}
)

// Begin counts a call from now on, and returns its context. It is for a tap handle. known says that the client is known; Known
// may say so later. The error is a status for the client: an unknown method, or too many calls of unknown clients.
func (b *Budget) Begin(ctx context.Context, method string, known bool) (context.Context, error) {
	streams, ok := b.methods[method]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	c := connOf(ctx)
	if c == nil {
		return ctx, nil
	}
	k := &call{Context: ctx, conn: c, id: c.id, timed: !streams && !(b.config.TrustKnown && known)}
	if !c.begin(k, known) {
		return nil, errManyUnknown
	}
	return k, nil
}

// connOf returns the connection of a call, nil if it is not one of a Budget.
func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		if own, ok := p.AuthInfo.(*info); ok {
			return own.conn
		}
	}
	return nil
}

// Opened returns when the connection of a call was opened, the zero time if it is not one of a Budget.
func Opened(ctx context.Context) (t time.Time) {
	if c := connOf(ctx); c != nil {
		t = c.opened
	}
	return t
}

// rejectedPause is how long a connection is not read after a rejected call: it gets a thousand of them a second.
const rejectedPause = time.Millisecond

// Reject is for a tap handle that rejects a call of an unknown client. It delays the connection, unless that has had calls of
// known clients, as one of a proxy has.
func (b *Budget) Reject(ctx context.Context) {
	if c := connOf(ctx); c != nil && !c.known {
		time.Sleep(rejectedPause)
	}
}

// Known marks the client of the call with that context as known.
func Known(ctx context.Context) {
	if k, ok := ctx.Value(callKey{}).(*call); ok {
		k.conn.know(k)
	}
}

// Registrar returns a registrar of services at g, whose calls are counted.
func (b *Budget) Registrar(g *grpc.Server) Registrar { return Registrar{g, b} }

// Registrar is a server whose calls are counted.
type Registrar struct {
	*grpc.Server
	budget *Budget
}

// RegisterService implements grpc.ServiceRegistrar.
func (r Registrar) RegisterService(d *grpc.ServiceDesc, impl any) {
	own := *d
	own.Methods = slices.Clone(d.Methods)
	for i, m := range own.Methods {
		r.budget.methods["/"+d.ServiceName+"/"+m.MethodName] = false
		own.Methods[i].Handler = r.budget.unary(m.Handler)
	}
	for _, s := range d.Streams {
		r.budget.methods["/"+d.ServiceName+"/"+s.StreamName] = s.ClientStreams
	}
	r.Server.RegisterService(&own, impl)
}

// note counts and logs that a call of c was ended. c may be nil.
func (b *Budget) note(reason int, c *conn) {
	b.ended[reason].Add(1)
	if !b.lines.Allow(time.Now(), reasonNames[reason]) {
		return
	}
	text, from := "a call was ended because its message is not complete", ""
	if reason == memory {
		text = "a call was ended because its message would take too much memory"
	}
	if c != nil {
		from = c.RemoteAddr().String()
	}
	b.config.Log.Warn(text, "port", b.config.Port, "reason", reasonNames[reason], "from", from, "held_bytes", b.held.Load())
}
