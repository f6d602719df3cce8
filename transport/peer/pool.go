package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-project/sluice/internal/check"
)

// Pool asks other nodes. It must be created with Open and closed with Close. It is
// safe for concurrent use.
type Pool struct {
	cfg    Config
	dial   []grpc.DialOption
	ctx    context.Context // of all streams; ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	stats  poolStats
	calls  sync.Pool // of *call

	mu struct {
		sync.RWMutex
		closed bool
		links  map[string]*link
	}
}

// PoolStats counts since Open, except for Peers.
type PoolStats struct {
	// Peers are the connected ones, now.
	Peers int
	// Waiting is how many records wait in queues, now.
	Waiting int
	// Frames and Records went out; Records / Frames is how well they gather.
	Frames, Records uint64
	// Overloaded are calls refused because of a full queue, Abandoned those whose
	// context ended first.
	Overloaded, Abandoned uint64
	// Dialled are connections made, Failed attempts that did not become one,
	// Broken connections lost.
	Dialled, Failed, Broken uint64
}

type poolStats struct {
	frames, records, overloaded, abandoned, dialled, failed, broken atomic.Uint64
}

// Open returns a pool without connections: they are made when somebody asks.
func Open(c Config) (*Pool, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{cfg: c.withDefaults()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.links = make(map[string]*link)
	p.dial = []grpc.DialOption{
		grpc.WithTransportCredentials(p.cfg.Credentials),
		grpc.WithContextDialer(p.cfg.Dial),
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

// Call sends records to the node at addr and waits until replies are filled, one
// for each. It returns nil, or an error that names addr and wraps one of
//   - check.ErrUnsent: no record left this node;
//   - check.ErrAmbiguous: records were sent, and answers are missing;
//   - check.ErrOverloaded: too many records wait for this peer already.
//
// When ctx ends first, its error is wrapped as well. After Call has returned, nothing
// writes to replies or reads records. Many records go in parts: after an error the
// replies that came before it stand, and those that did not come have no Status; the
// error is about the latter.
func (p *Pool) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	if len(records) != len(replies) {
		return fmt.Errorf("peer %s: %w: %d records with room for %d replies", addr, check.ErrUnsent, len(records), len(replies))
	}
	l, err := p.link(addr)
	if err != nil {
		return err
	}
	clear(replies)
	for sent := 0; sent < len(records); sent += maxGather {
		end := min(sent+maxGather, len(records))
		if err := l.call(ctx, records[sent:end], replies[sent:end]); err != nil {
			return err
		}
	}
	return nil
}

// link returns the link to addr, made if need be.
func (p *Pool) link(addr string) (*link, error) {
	p.mu.RLock()
	l, closed := p.mu.links[addr], p.mu.closed
	p.mu.RUnlock()
	if closed {
		return nil, p.errClosed(addr)
	}
	if l != nil {
		return l, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, p.errClosed(addr)
	}
	if l := p.mu.links[addr]; l != nil {
		return l, nil
	}
	l = &link{pool: p, addr: addr}
	p.mu.links[addr] = l
	return l, nil
}

func (p *Pool) errClosed(addr string) error {
	return fmt.Errorf("peer %s: %w: the pool is closed", addr, check.ErrUnsent)
}

// Retain closes the connections to all other addresses. What they have not answered
// fails.
func (p *Pool) Retain(addrs []string) {
	var gone []*link
	p.mu.Lock()
	for addr, l := range p.mu.links {
		if !slices.Contains(addrs, addr) {
			delete(p.mu.links, addr)
			gone = append(gone, l)
		}
	}
	p.mu.Unlock()
	for _, l := range gone {
		l.close(errors.New("this peer is no longer a member"))
	}
}

// Close closes all connections and waits for the pool's goroutines. Calls under way
// fail.
func (p *Pool) Close() {
	p.mu.Lock()
	p.mu.closed = true
	links := p.mu.links
	p.mu.links = nil
	p.mu.Unlock()
	for _, l := range links {
		l.close(errors.New("the pool is closed"))
	}
	p.cancel()
	p.wg.Wait()
}

// Stats returns the pool's counts.
func (p *Pool) Stats() PoolStats {
	s := PoolStats{
		Frames: p.stats.frames.Load(), Records: p.stats.records.Load(),
		Overloaded: p.stats.overloaded.Load(), Abandoned: p.stats.abandoned.Load(),
		Dialled: p.stats.dialled.Load(), Failed: p.stats.failed.Load(), Broken: p.stats.broken.Load(),
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, l := range p.mu.links {
		l.mu.Lock()
		if l.mu.session != nil {
			s.Peers++
		}
		s.Waiting += l.mu.waiting.records
		l.mu.Unlock()
	}
	return s
}
