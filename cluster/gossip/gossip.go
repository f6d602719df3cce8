// Package gossip keeps the membership of the cluster: it finds the other nodes, announces this one, notices crashes, and
// publishes the result as views (member.View). It decides which of two processes of one name is shown, which peers are
// rejected (another placement), when a starting node may go on, and when a node has to stop because its name is taken. It
// does not decide which node owns which keys.
//
// The protocol is SWIM with Lifeguard's improvements, as memberlist implements it. This package is memberlist's only user.
// memberlist knows a process as name/boot, because it rejects a known name from a new address; the logical name travels in
// the metadata.
//
// A Gossip owns three goroutines: watch builds views, the joiner contacts join targets and lost members, watchName applies
// the rules for the first start and for name conflicts. If gossip is encrypted, runChallenges challenges processes that are
// new to this node and responds to challenges. memberlist's callbacks run under its lock: they only write to the registry
// and signal.
//
// Lock order: Gossip.announce, then memberlist's own, then registry.mu. Gossip.mu and Gossip.publishing are taken before
// registry.mu and never inside announce's calls into memberlist.
package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
	"github.com/sluicecluster/sluice/internal/member"
)

var (
	// ErrDuplicateName means that another living process has this node's name. The newer process gets it and must not serve.
	ErrDuplicateName = errors.New("two living nodes carry one name")
	// ErrReplaced means that a newer process serves under this node's name, after this one was paused or isolated for long. It
	// must stop.
	ErrReplaced = errors.New("replaced by a newer process of the same name")
	// ErrListen means that the gossip port cannot be listened on.
	ErrListen = errors.New("cannot listen")
	// ErrClosed means that Leave or Close was called before.
	ErrClosed = errors.New("gossip is closed")
)

// Gossip is this node's part in the membership. It must be created with Open and
// closed with Close. All methods may be called from any goroutine.
type Gossip struct {
	config    Config
	log       *slog.Logger
	registry  *registry
	list      *memberlist.Memberlist
	transport memberlist.Transport // of list
	joiner    *joiner
	keys      *keyring // nil if gossip is not encrypted

	meta     atomic.Pointer[[]byte] // of this node, for memberlist
	view     atomic.Pointer[member.View]
	changes  chan struct{}
	repeat   chan struct{} // signalled when our state should be announced once more
	answered chan struct{} // signalled when a compatible peer exchanged state with us

	challenges chan challenged // that this process has to answer
	library    *libraryLines

	// announce holds a value while an announcement to others is in progress, and guards left. It is a channel because its
	// owners wait for time to pass, which a testing/synctest bubble sees in a channel but not in a sync.Mutex.
	announce   chan struct{}
	left       bool
	publishing sync.Mutex // serializes the building of views

	mu struct {
		sync.Mutex
		self   member.Member
		ready  bool
		closed bool
		err    error
		waits  string // which other process of this name has to end first
	}
	ready chan struct{} // closed when mu.ready is set
	done  chan struct{} // closed when mu.err is set

	cancel      context.CancelFunc
	stopJoining context.CancelFunc
	wg          sync.WaitGroup
	closeOnce   sync.Once
	closeErr    error
}

// Open binds the gossip port, announces this node as joining, and starts looking for others, without waiting for them; Ready
// waits. ctx bounds Open itself, for example the resolving of a name in Bind. Errors name the invalid field of Config.
func Open(ctx context.Context, config Config) (*Gossip, error) {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	library := &libraryLines{log: config.Logger.With("node", config.Name), quiet: loglimit.New(time.Minute)}
	end, err := openEndpoint(ctx, running, config, log.New(library, "", 0))
	if err != nil {
		cancel()
		return nil, err
	}
	g := &Gossip{
		config:     config,
		library:    library,
		log:        library.log,
		registry:   newRegistry(fullName(config.Name, config.Boot), forgetAfter),
		changes:    make(chan struct{}, 1),
		announce:   make(chan struct{}, 1),
		repeat:     make(chan struct{}, 1),
		answered:   make(chan struct{}, 1),
		challenges: make(chan challenged, maxChallenges),
		ready:      make(chan struct{}),
		done:       make(chan struct{}),
		cancel:     cancel,
	}
	g.mu.self = config.self(end)
	if err := g.start(running, end); err != nil {
		cancel()
		_ = end.transport.Shutdown()
		return nil, err
	}
	return g, nil
}

// start creates memberlist on the endpoint and starts the goroutines.
func (g *Gossip) start(running context.Context, end endpoint) error {
	meta, err := g.encode(g.mu.self)
	if err != nil {
		return err
	}
	g.meta.Store(&meta)
	if g.keys, err = newKeyring(g.config.Keyring); err != nil {
		return err
	}
	g.registry.proof = g.keys != nil
	g.transport = end.transport
	g.list, err = memberlist.Create(g.config.memberlist(g, end))
	if err != nil {
		return fmt.Errorf("gossip: start on %s: %w", end.address, err)
	}
	g.joiner = g.newJoiner(end.address)
	g.publish()
	g.log.Info("gossip started", "address", end.address.String(), "boot", g.config.Boot, "join", g.config.Join,
		"encrypted", g.keys != nil)
	g.wg.Go(func() { g.watch(running) })
	joining, stop := context.WithCancel(running)
	g.stopJoining = stop
	g.wg.Go(func() { g.joiner.run(joining) })
	g.wg.Go(func() { g.watchName(running) })
	if g.keys != nil {
		g.wg.Go(func() { g.runChallenges(running) })
	}
	return nil
}

// encode returns the metadata of self.
func (g *Gossip) encode(self member.Member) ([]byte, error) {
	meta, err := encodeMeta(metadata{member: self, placement: uint32(g.config.Placement), region: g.config.Region})
	if err != nil {
		return nil, fmt.Errorf("gossip: Name, Peer, GRPC, HTTP and Version together: %w", err)
	}
	return meta, nil
}

// View returns the current members, this node included. Its Members must not be changed.
func (g *Gossip) View() member.View { return *g.view.Load() }

// Changes is signalled when the View has changed since the last receive. It is for one receiver; several changes may give
// one signal.
func (g *Gossip) Changes() <-chan struct{} { return g.changes }

// Self returns this node as others see it, with its advertised addresses.
func (g *Gossip) Self() member.Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.self
}

// Addr returns the advertised gossip address, host:port, with the real port if Bind has port 0.
func (g *Gossip) Addr() string { return g.Self().Gossip }

// Ready waits until this node may serve: it has no join targets, or one answered, or none did within Timing.JoinTimeout; and
// no other living process has its name (it waits for one that is leaving, see WaitsFor). Otherwise it returns
// ErrDuplicateName, wrapped with the other's address, or the error of ctx.
func (g *Gossip) Ready(ctx context.Context) error {
	select {
	case <-g.ready:
	case <-g.done:
	case <-ctx.Done():
		return fmt.Errorf("gossip: waiting to join: %w", ctx.Err())
	}
	return g.Err()
}

// Done is closed when this node has to stop. Err then says why.
func (g *Gossip) Done() <-chan struct{} { return g.done }

// Err returns why this node has to stop, ErrDuplicateName, ErrReplaced or ErrClosed, wrapped, or nil.
func (g *Gossip) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.err
}

// failLocked makes err the reason to stop, unless there is one. It requires that g.mu is held.
func (g *Gossip) failLocked(err error) {
	if g.mu.err == nil {
		g.mu.err = err
		close(g.done)
	}
}

// Close stops without announcing it, so that the others take this node for crashed: call Leave before. It waits for this
// package's goroutines; memberlist's own, which cannot be waited for, end within a probe interval. Later calls return the
// first's result.
func (g *Gossip) Close() error {
	g.closeOnce.Do(func() {
		g.mu.Lock()
		g.mu.closed = true
		g.failLocked(fmt.Errorf("gossip: %w", ErrClosed))
		g.mu.Unlock()
		g.cancel() // ends waits and dials first, so that announce comes free
		g.announce <- struct{}{}
		g.closeErr = g.list.Shutdown()
		<-g.announce
		g.wg.Wait()
	})
	return g.closeErr
}

// bootLength is the length of every boot ID: 16 hex digits, a dash, 8 hex digits.
const bootLength = 16 + 1 + 8

// NewBoot makes the boot ID of a process that started at start: nanoseconds since 1970 in fixed-width hex, a dash, and random
// bits in case two start at once. The later start sorts higher.
func NewBoot(start time.Time, random uint32) string {
	return fmt.Sprintf("%016x-%08x", uint64(max(start.UnixNano(), 0)), random)
}

// randomBoot makes a boot ID for this process, starting now.
func randomBoot() string { return NewBoot(time.Now(), rand.Uint32()) } // #nosec G404 -- a boot ID is no secret

// validBoot reports whether s has the form of NewBoot.
func validBoot(s string) bool {
	return len(s) == bootLength && s[16] == '-' && strings.Trim(s[:16]+s[17:], "0123456789abcdef") == ""
}

// fullName is memberlist's name of a process. Logical names contain no slash.
func fullName(name, boot string) string { return name + "/" + boot }
