// Package watch shows the cluster live: while there are watchers, a Hub asks all nodes once a second for their reports,
// adds them up (sum.go, which is pure), and gives every watcher the same encoded events. Hub.Run is the one goroutine, and
// the caller's.
//
// Private values do not get here: the limiter hides them. Who may watch, and how events travel, transport/console decides.
package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/limiter"
)

const (
	// period is the time between reports, topEvery the number of periods between top keys, of which topKeysShown are shown.
	period       = time.Second
	topEvery     = 5
	topKeysShown = 20
	// MaxWatchers bounds those of one node, maxBehind the events that one may be behind.
	MaxWatchers = 32
	maxBehind   = 16
)

// Why a watcher gets no more events.
var (
	ErrTooMany = errors.New("too many watch this node already; watch another, or close a page")
	ErrClosed  = errors.New("the node is stopping")
	ErrSlow    = errors.New("events were not taken fast enough")
)

// Config has the sources of a Hub. All are required.
type Config struct {
	Members func(context.Context) limiter.Members
	// Here returns this node's report with the newest slots of its history, Others those that come in time.
	Here   func(ctx context.Context, slots int) facts.Node
	Others func(ctx context.Context, slots int) (nodes []facts.Node, missing []string)
	Top    func(context.Context, limiter.TopQuery) (limiter.Top, error)
}

// Hub gives watchers events. It must be run with Run, and closed before its sources end. It is safe for
// concurrent use.
type Hub struct {
	cfg  Config
	wake chan struct{}

	mu struct {
		sync.Mutex
		closed   bool
		watchers map[*Watcher]struct{}
	}
}

// NewHub returns a Hub without watchers.
func NewHub(c Config) *Hub {
	h := &Hub{cfg: c, wake: make(chan struct{}, 1)}
	h.mu.watchers = make(map[*Watcher]struct{})
	return h
}

// Watcher gets events. It must be closed.
type Watcher struct {
	hub    *Hub
	events chan []byte
	// fresh: it is still to get the history.
	fresh bool
	err   error
}

// Watch adds a watcher. The error is ErrTooMany or ErrClosed.
func (h *Hub) Watch() (*Watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.mu.closed:
		return nil, ErrClosed
	case len(h.mu.watchers) >= MaxWatchers:
		return nil, ErrTooMany
	}
	w := &Watcher{hub: h, events: make(chan []byte, maxBehind), fresh: true}
	h.mu.watchers[w] = struct{}{}
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return w, nil
}

// Events are encoded as text/event-stream, and not to be changed. The channel is closed after the last; Err says why.
func (w *Watcher) Events() <-chan []byte { return w.events }

// Err is why there are no more events.
func (w *Watcher) Err() error {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.err
}

// Close ends watching.
func (w *Watcher) Close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked(nil)
}

func (w *Watcher) endLocked(why error) {
	if _, ok := w.hub.mu.watchers[w]; ok {
		delete(w.hub.mu.watchers, w)
		w.err = why
		close(w.events)
	}
}

// Close ends all watching, for good.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.closed = true
	for w := range h.mu.watchers {
		w.endLocked(ErrClosed)
	}
}

// Watchers returns how many there are.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.watchers)
}

// Run gathers while there are watchers, until ctx ends. It then closes the Hub and returns nil.
func (h *Hub) Run(ctx context.Context) error {
	defer h.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		}
		h.session(ctx)
	}
}

// session gathers until there are no watchers.
func (h *Hub) session(ctx context.Context) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	s := newSum()
	var last []byte // the newest keys
	for n := 0; h.Watchers() > 0 && ctx.Err() == nil; n++ {
		slots := s.due(time.Now())
		g := h.gather(ctx, slots, n%topEvery == 0)
		var events [][]byte
		if slots > 0 {
			for i := range g.nodes {
				s.addHistory(&g.nodes[i])
			}
			events = append(events, frame(EventSlot, s.history(min(slots, shown))))
		}
		state := s.state(g.at, g.members, g.nodes, g.missing)
		events = append(events, frame(EventState, state))
		if g.top != nil {
			last = frame(EventTop, g.top)
			events = append(events, last)
		}
		greeting := func() [][]byte {
			return [][]byte{frame(EventHistory, s.history(shown)), frame(EventState, state), last}
		}
		h.publish(events, greeting)
		for next := false; !next && ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-tick.C:
				next = true
			case <-h.wake: // new watchers get what was gathered last
				h.publish(nil, greeting)
			}
		}
	}
}

// gathered are the reports of one moment.
type gathered struct {
	at      time.Time
	members limiter.Members
	nodes   []facts.Node
	missing []string
	top     *top // nil without keys
}

func (h *Hub) gather(ctx context.Context, slots int, keys bool) (g gathered) {
	var both sync.WaitGroup
	if keys {
		both.Go(func() { g.top = h.keys(ctx) })
	}
	g.members = h.cfg.Members(ctx)
	g.nodes, g.missing = h.cfg.Others(ctx, slots)
	here := h.cfg.Here(ctx, slots)
	here.Name = g.members.Self
	for i := range g.members.Members {
		if m := &g.members.Members[i]; m.Name == here.Name {
			here.Boot = m.Boot
		}
	}
	g.nodes = append(g.nodes, here)
	g.at = time.Now()
	both.Wait()
	return g
}

// keys gathers the heaviest keys.
func (h *Hub) keys(ctx context.Context) *top {
	t := &top{Limited: []topKey{}, Frequent: []topKey{}, Missing: []string{}}
	for _, by := range []limiter.TopBy{limiter.ByLimited, limiter.ByFrequent} {
		got, err := h.cfg.Top(ctx, limiter.TopQuery{By: by, N: topKeysShown, Operator: true})
		if err != nil {
			t.Off = true
			return t
		}
		t.Covers, t.Missing = got.Covers.Seconds(), append([]string{}, got.Missing...)
		if by == limiter.ByLimited {
			t.Limited = topKeysOf(got)
		} else {
			t.Frequent = topKeysOf(got)
		}
	}
	return t
}

// publish gives events to all watchers, and to fresh ones the greeting instead. It ends those that are too far behind.
func (h *Hub) publish(events [][]byte, greeting func() [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var greet [][]byte
	for w := range h.mu.watchers {
		list := events
		if w.fresh {
			if greet == nil {
				greet = greeting()
			}
			list, w.fresh = greet, false
		}
		for _, e := range list {
			if len(e) == 0 {
				continue
			}
			select {
			case w.events <- e:
				continue
			default:
			}
			w.endLocked(ErrSlow)
			break
		}
	}
}
