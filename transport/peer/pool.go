package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
	"github.com/sluicecluster/sluice/internal/message"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// Pool sends records and control messages to other nodes. It must be created with Open and closed with Close. It is safe for
// concurrent use.
type Pool struct {
	cfg    Config
	dial   []grpc.DialOption
	ctx    context.Context // of all streams; ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	stats  struct {
		frames, records, merged, posted, dropped, overloaded, abandoned, dialled, failed, broken atomic.Uint64
	}
	calls     sync.Pool // of *call
	quiet     *loglimit.Limiter
	dialTimes sync.Map // by address, the duration of the last successful dial
	traffic   sync.Map // by region, its Traffic

	mu struct {
		sync.RWMutex
		links map[string]*peerLinks // by address; nil after Close
	}
}

// PoolStats counts since Open, except for Peers.
type PoolStats struct {
	// Peers are the addresses that records can go to without connecting, now.
	Peers int
	// Waiting is how many records wait in queues, now.
	Waiting int
	// Frames and Records went out; Records / Frames is how well they gather. Merged checks went in the record of an equal one.
	Frames, Records, Merged uint64
	// Posted are messages that were given to a connection, Dropped those that were not.
	Posted, Dropped uint64
	// Overloaded are calls rejected because of a full queue, Abandoned those whose context ended first.
	Overloaded, Abandoned uint64
	// Dialled are connections made, Failed attempts that did not become one,
	// Broken connections lost; those for control messages are counted as those for records.
	Dialled, Failed, Broken uint64
}

// Open returns a pool without connections: calls and messages make them.
func Open(c Config) (*Pool, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{cfg: c.withDefaults(), quiet: loglimit.New(logEvery)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.calls.New = func() any { return &call{done: make(chan error, 1)} }
	p.mu.links = make(map[string]*peerLinks)
	p.dial = []grpc.DialOption{ // dial adds one
		grpc.WithTransportCredentials(p.cfg.Credentials),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(newFrameCodec()),
			grpc.MaxCallRecvMsgSize(maxFrameBytes),
			grpc.MaxCallSendMsgSize(maxFrameBytes),
		),
		// Windows that hold all a stream has unanswered, so that the reader of one
		// side never waits for the writer of the other.
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: p.cfg.DialTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
	}
	return p, nil
}

// warn logs an error of the peer at addr, at most once per logEvery.
func (p *Pool) warn(text, addr string, args ...any) {
	if p.quiet.Allow(time.Now(), text+" "+addr) {
		p.cfg.Log.Warn(text, append([]any{"peer", addr}, args...)...)
	}
}

// Call sends records to the node at addr and waits for replies, one for each. It returns nil, or an error that names addr and
// wraps one of
//   - check.ErrUnsent: no record left this node;
//   - check.ErrAmbiguous: records were sent, and answers are missing;
//   - check.ErrOverloaded: too many records wait for this peer already.
//
// If ctx ends first, its error is wrapped as well. After Call has returned, nothing writes to replies or reads records. Many
// records go in parts: an error is about the replies without a Status; those that came before it stand.
//
// Records that are Sync or Relay, all of a call or none, have a stream of their own, where no others wait for them.
func (p *Pool) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	if len(records) != len(replies) {
		return fmt.Errorf("peer %s: %w: %d records with room for %d replies", addr, check.ErrUnsent, len(records), len(replies))
	}
	w, err := p.linksTo(addr)
	if err != nil {
		return err
	}
	l := w.immediate
	if len(records) > 0 && (records[0].Sync || records[0].Relay) {
		l = w.sync
	}
	clear(replies)
	for len(records) > 0 {
		n, limits := fits(records)
		if err := l.call(ctx, records[:n], limits, replies[:n]); err != nil {
			return err
		}
		records, replies = records[n:], replies[n:]
	}
	return nil
}

// Post sends e to the process at addr, or drops it: it never blocks, and reports nothing. To one address, bulky messages
// (transfer batches and reports) are delivered in the order of their Posts, and so are the others, which overtake them. An
// e.Copy goes over a connection of its own, too, and overtakes all. e.From does not travel: the receiver takes it from this
// node's hello. A connection is made if there is none; if the attempt fails, waiting messages are dropped.
func (p *Pool) Post(addr string, e message.Envelope) {
	w, err := p.linksTo(addr)
	if err != nil {
		p.stats.dropped.Add(1)
		return
	}
	if e.Copy {
		w.duplicateControl.post(e)
	}
	w.control.post(e)
}

// peerLinks has the streams to one address: for records that are answered at once, for records whose replies wait for a replica or
// another node, for control messages, and for copies of control messages.
type peerLinks struct {
	immediate, sync           *link
	control, duplicateControl *outbox
}

// knownLinks returns the links to addr, nil if there are none.
func (p *Pool) knownLinks(addr string) *peerLinks {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mu.links[addr]
}

// linksTo returns the links to addr, and makes them if there are none.
func (p *Pool) linksTo(addr string) (*peerLinks, error) {
	if w := p.knownLinks(addr); w != nil {
		return w, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.links == nil {
		return nil, fmt.Errorf("peer %s: %w: the pool is closed", addr, check.ErrUnsent)
	}
	w := p.mu.links[addr]
	if w == nil {
		w = &peerLinks{
			immediate: &link{pool: p, addr: addr, trips: 1}, sync: &link{pool: p, addr: addr, trips: 2},
			control: newOutbox(p, addr), duplicateControl: newOutbox(p, addr),
		}
		p.mu.links[addr] = w
	}
	return w, nil
}

// close closes all links for good.
func (w *peerLinks) close(why error) {
	w.immediate.close(why)
	w.sync.close(why)
	w.control.close()
	w.duplicateControl.close()
}

// Failure returns why the messages to addr do not arrive, "" if the last connection was made or none was tried.
func (p *Pool) Failure(addr string) string {
	w := p.knownLinks(addr)
	if w == nil {
		return ""
	}
	w.control.mu.Lock()
	defer w.control.mu.Unlock()
	if w.control.mu.retry.err == nil || w.control.mu.cancel != nil {
		return ""
	}
	return w.control.mu.retry.err.Error()
}

// Greet connects to addr, exchanges hellos and proofs, and hangs up. It returns why the two nodes cannot communicate, or nil.
func (p *Pool) Greet(addr string) error {
	_, c, err := dial(p.ctx, p, addr, peerv1.PeerServiceClient.Control)
	if err == nil {
		c.close()
	}
	return err
}

// HangUp ends the calls to addr in flight, as if their connections were lost: the process there is silent, and the callers can
// ask other nodes. Control messages go on, so that it is heard when it speaks again, and so do later calls.
func (p *Pool) HangUp(addr string) {
	if w := p.knownLinks(addr); w != nil {
		w.immediate.hangUp()
		w.sync.hangUp()
	}
}

// Retain closes the connections to all other addresses of this cluster: unanswered calls fail, waiting control messages are dropped.
func (p *Pool) Retain(addrs []string) {
	var gone []*peerLinks
	closes := func(addr string) bool {
		region, _ := splitRegion(addr)
		return region == "" && !slices.Contains(addrs, addr)
	}
	p.mu.Lock()
	for addr, w := range p.mu.links {
		if closes(addr) {
			delete(p.mu.links, addr)
			gone = append(gone, w)
		}
	}
	p.mu.Unlock()
	p.dialTimes.Range(func(addr, _ any) bool {
		if closes(addr.(string)) {
			p.dialTimes.Delete(addr)
		}
		return true
	})
	for _, w := range gone {
		w.close(errNoMember)
	}
}

// Close closes all connections and waits for the pool's goroutines. Calls in flight fail.
func (p *Pool) Close() {
	p.mu.Lock()
	all := p.mu.links
	p.mu.links = nil
	p.mu.Unlock()
	for _, w := range all {
		w.close(errors.New("the pool is closed"))
	}
	p.cancel()
	p.wg.Wait()
}

// Stats returns the pool's counts.
func (p *Pool) Stats() PoolStats {
	s := PoolStats{
		Frames: p.stats.frames.Load(), Records: p.stats.records.Load(), Merged: p.stats.merged.Load(),
		Posted: p.stats.posted.Load(), Dropped: p.stats.dropped.Load(),
		Overloaded: p.stats.overloaded.Load(), Abandoned: p.stats.abandoned.Load(),
		Dialled: p.stats.dialled.Load(), Failed: p.stats.failed.Load(), Broken: p.stats.broken.Load(),
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, w := range p.mu.links {
		connected := false
		for _, l := range []*link{w.immediate, w.sync} {
			l.mu.Lock()
			connected = connected || l.mu.session != nil
			s.Waiting += l.mu.waiting.records
			l.mu.Unlock()
		}
		if connected {
			s.Peers++
		}
	}
	return s
}
