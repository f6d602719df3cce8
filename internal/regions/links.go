package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/cluster/gossip"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/transport/peer"
)

const (
	connections   = 2           // to nodes of each other region
	speakers      = 2           // connections for messages to each, so that one that waits for lost packets delays few
	carriers      = 2           // connections for the counters of roles that are passed on
	window        = 16          // messages of a connection that have no response yet
	every         = time.Second // between two requests to a node
	answerTimeout = 2 * time.Second
	lookUpTimeout = 2 * time.Second
	idleTimeout   = 5 * time.Second // of a connection of a carrier
	// avoidFor is how long a speaker prefers another node after its connection has failed, leastPause its first pause then.
	avoidFor   = 5 * time.Second
	leastPause = 50 * time.Millisecond
	// retryPause is the least time after a failed attempt, idlePause that while there is no further address to try. Up to as much
	// again is added at random.
	retryPause = time.Second
	idlePause  = 4 * time.Second
	// maxShown is the number of reasons that a status has.
	maxShown = 3
)

// Config configures Links. Resolver is optional.
type Config struct {
	List *List
	Pool *peer.Pool
	// Clock is this node's, Unix time in ns. Others may be MaxClockSkew apart.
	Clock        func() int64
	MaxClockSkew time.Duration
	// Member reports whether a boot ID is that of a node of this cluster. Before this node has joined it, it may not be known.
	Member func(boot string) (is, known bool)
	// Rules are what regions must agree on, nil while they are not known.
	Rules    func() *Rules
	Resolver gossip.Resolver
	Log      *slog.Logger
}

// Links has the links to other regions. Its methods may be called concurrently, and before Run.
type Links struct {
	cfg   Config
	table atomic.Pointer[table]
	mu    struct {
		sync.Mutex
		ctx context.Context // of Run, nil before
		all sync.WaitGroup
	}
}

// table is one version of the regions. It is immutable.
type table struct {
	list   *List
	others map[string]*region
}

// New returns links that are made while Run runs.
func New(c Config) *Links {
	l := &Links{cfg: c}
	l.table.Store(new(table))
	l.Set(c.List)
	return l
}

// Set puts another list into force. Links to regions whose addresses are the same stay.
func (l *Links) Set(list *List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, t := l.table.Load(), &table{list, map[string]*region{}}
	for _, other := range list.others {
		r := old.others[other.name]
		if r == nil || !slices.Equal(r.nodes, other.nodes) {
			r = &region{target: other, cfg: &l.cfg, log: l.cfg.Log.With("region", other.name)}
			r.urgent, r.keys, r.bulk = make(chan *message.RegionMessages, 16), make(chan *message.RegionMessages, 256), make(chan *message.RegionMessages, 16)
			r.mu.nodes, r.mu.problems, r.mu.tried = map[string]*node{}, map[string]problem{}, map[string]time.Time{}
			r.mu.state, r.mu.since, r.drop = facts.RegionUnknown, time.Now(), func(error) {}
			l.startLocked(r)
		}
		t.others[other.name] = r
	}
	l.table.Store(t)
	for name, r := range old.others {
		if t.others[name] != r {
			r.drop(errDropped)
		}
	}
}

// Self is the name of this region.
func (l *Links) Self() string { return l.cfg.List.self }

// Has reports whether the list of regions has that name.
func (l *Links) Has(name string) bool { return l.region(name) != nil || name == l.Self() }

func (l *Links) region(name string) *region { return l.table.Load().others[name] }

// Addr returns the address of a node of that region that answers, for peer.Pool: another one for each try, "" if there is none.
func (l *Links) Addr(name string, try int) string {
	r := l.region(name)
	if r == nil {
		return ""
	}
	usable := r.usable.Load()
	if usable == nil || len(*usable) == 0 {
		return ""
	}
	return (*usable)[uint(try)%uint(len(*usable))]
}

// RTT is the round trip to that region, measured lately, to the farther one of the nodes; 0 if it was never reached.
func (l *Links) RTT(name string) time.Duration {
	if r := l.region(name); r != nil {
		return time.Duration(r.rtt.Load())
	}
	return 0
}

// Others returns the names of the other regions, sorted.
func (l *Links) Others() []string { return slices.Sorted(maps.Keys(l.table.Load().others)) }

// Part returns the weight of this region, and those of all regions together.
func (l *Links) Part() (own, all int) { return l.table.Load().list.part() }

// Rules returns what regions must agree on, by these rules and the list.
func (l *Links) Rules(list []message.GlobalRule) *Rules { return NewRules(l.cfg.List, list) }

// Post sends m to a node of that region that responds. It drops m if there is none, or if too many wait.
func (l *Links) Post(name string, m *message.RegionMessages) {
	if r := l.region(name); r != nil {
		to := r.urgent
		switch { // no heartbeat waits behind messages about keys, and none of these behind counters of roles
		case m.Counters != nil && !m.Counters.Key:
			to = r.bulk
		case m.Counters != nil || m.Taken != nil || m.Homes != nil:
			to = r.keys
		}
		select {
		case to <- m:
		default:
		}
	}
}

// Status returns the states of the other regions, sorted by name.
func (l *Links) Status() (list []facts.Region) {
	t := l.table.Load()
	for _, r := range t.others {
		s := r.status()
		s.Weight = t.list.weight(r.name)
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b facts.Region) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Run keeps the links until ctx ends.
func (l *Links) Run(ctx context.Context) error {
	l.mu.Lock()
	l.mu.ctx = ctx
	for _, r := range l.table.Load().others {
		l.startLocked(r)
	}
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock() // no goroutine starts from now on
	defer l.mu.Unlock()
	l.mu.all.Wait()
	return nil
}

// errDropped: the list has the region no more.
var errDropped = errors.New("not in the list of regions")

// startLocked starts the goroutines of r if Run runs.
func (l *Links) startLocked(r *region) {
	if l.mu.ctx == nil || l.mu.ctx.Err() != nil {
		return
	}
	ctx, drop := context.WithCancelCause(l.mu.ctx)
	r.drop = drop
	all := &l.mu.all
	for range connections {
		all.Go(func() { r.run(ctx) })
	}
	for i := range speakers {
		all.Go(func() { r.speak(ctx, l, i, r.urgent, r.keys) })
	}
	for i := range carriers {
		all.Go(func() { r.speak(ctx, l, i, nil, r.bulk) })
	}
}

// region is the link to one other region.
type region struct {
	target
	cfg  *Config
	log  *slog.Logger
	drop context.CancelCauseFunc // ends its goroutines

	usable             atomic.Pointer[[]string] // what Addr returns
	urgent, keys, bulk chan *message.RegionMessages
	rtt                atomic.Int64

	mu struct {
		sync.Mutex
		nodes    map[string]*node     // by address, those that a goroutine talks to
		problems map[string]problem   // by what has it
		tried    map[string]time.Time // by address
		state    facts.RegionState
		since    time.Time // of state
	}
}

// node is a node at an address. Its name is empty until it has answered.
type node struct {
	name, cluster string
	rtt           time.Duration
}

// problem is what is wrong with a node or with the region. A serious one is shown although nodes are reached.
type problem struct {
	text    string
	serious bool
}

// run talks to one node at a time.
func (r *region) run(ctx context.Context) {
	for ctx.Err() == nil {
		rest := idlePause
		if addr := r.claim(r.lookUp(ctx)); addr != "" {
			rest = retryPause
			r.ended(ctx, addr, r.talk(ctx, addr))
		}
		pause.For(ctx, rest+rand.N(rest)) // #nosec G404 -- a pause
	}
}

// lookUp returns the addresses of the region.
func (r *region) lookUp(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	failures := map[string]string{}
	var mu sync.Mutex
	found := gossip.LookUp(ctx, r.cfg.Resolver, r.target.nodes, func(t gossip.Target, err error) {
		mu.Lock()
		defer mu.Unlock()
		failures[t.String()] = err.Error()
	})
	if ctx.Err() != nil && len(found) == 0 && len(failures) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.target.nodes {
		r.problemLocked("name "+t.String(), failures[t.String()], "", false)
	}
	maps.DeleteFunc(r.mu.tried, func(addr string, _ time.Time) bool {
		_, known := found[addr]
		if gone := !known && r.mu.nodes[addr] == nil; gone {
			delete(r.mu.problems, addr)
			return true
		}
		return false
	})
	r.noteLocked()
	return slices.Collect(maps.Keys(found))
}

// claim returns the address that was longest not tried, "" if all are in use.
func (r *region) claim(addrs []string) (addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range addrs { // in random order
		if r.mu.nodes[a] == nil && (addr == "" || r.mu.tried[a].Before(r.mu.tried[addr])) {
			addr = a
		}
	}
	if addr != "" {
		r.mu.nodes[addr], r.mu.tried[addr] = &node{}, time.Now()
	}
	return addr
}

// talk asks the node at addr each second, until it fails or ctx ends.
func (r *region) talk(ctx context.Context, addr string) error {
	at := peer.RegionAddr(r.name, addr)
	t, err := r.cfg.Pool.Talk(ctx, at)
	if err != nil {
		return err
	}
	defer t.Close()
	tick := time.NewTicker(every)
	defer tick.Stop()
	rtt := time.Duration(0)
	for {
		asking, cancel := context.WithTimeout(ctx, max(answerTimeout, 4*rtt))
		began, clock := time.Now(), r.cfg.Clock()
		rules := r.cfg.Rules()
		answer, err := t.Ask(asking, rules.Request())
		took := time.Since(began)
		cancel()
		state, ok := answer.(*message.RegionResponse)
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("a response of type %T", answer)
		case rtt == 0:
			rtt = took
		default:
			rtt += (took - rtt) / 8 // as TCP's, RFC 6298
		}
		ahead := time.Duration(state.Clock - clock - int64(took/2))
		r.heard(addr, node{t.Peer().Name, state.ClusterID, rtt}, ahead, took/2, rules.differs(r.cfg.List.self, r.name, state))
		r.cfg.Pool.Keep(at)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// heard notes a response. The node's clock is ahead, give or take doubt, and its rules are other ones.
func (r *region) heard(addr string, n node, ahead, doubt time.Duration, rules string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.mu.nodes[addr] = n
	delete(r.mu.problems, addr)
	clock := ""
	if ahead.Abs()-doubt > r.cfg.MaxClockSkew {
		clock = fmt.Sprintf("the clock of node %s is %+.1fs off this node's, more than --max-clock-skew %v: correct the clocks of both regions", n.name, ahead.Seconds(), r.cfg.MaxClockSkew)
	}
	if rules != "" {
		rules = fmt.Sprintf("node %s: %s", n.name, rules)
	}
	r.problemLocked("clock of "+addr, clock, "clocks of two regions differ", false, "address", addr)
	r.problemLocked("rules of "+addr, rules, "rules of two regions differ", true, "address", addr)
	r.noteLocked()
}

// problemLocked notes what is wrong with what key names, nothing if text is empty. With a line it is serious, and
// logged if it is new: with again, if its text is.
func (r *region) problemLocked(key, text, line string, again bool, args ...any) {
	if text == "" {
		delete(r.mu.problems, key)
		return
	}
	if old := r.mu.problems[key]; line != "" && (!old.serious || again && old.text != text) {
		r.log.Error(line, append(args, "reason", text)...)
	}
	r.mu.problems[key] = problem{text, line != ""}
}

// ended notes that a goroutine does not talk to addr any more, because of err.
func (r *region) ended(ctx context.Context, addr string, err error) {
	if ctx.Err() != nil {
		if context.Cause(ctx) == errDropped { // else the last calls of a node that stops still need the connections
			r.cfg.Pool.Drop(peer.RegionAddr(r.name, addr))
		}
		return
	}
	r.cfg.Pool.Drop(peer.RegionAddr(r.name, addr))
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.nodes, addr)
	delete(r.mu.problems, "clock of "+addr)
	delete(r.mu.problems, "rules of "+addr)
	text, known := r.explain(addr, err)
	line := ""
	if known && errors.Is(err, peer.ErrRejected) {
		line = "a node of another region is rejected, or rejects this one"
	}
	r.problemLocked(addr, fmt.Sprintf("%s: %s", addr, text), line, true, "address", addr)
	r.noteLocked()
}

// explain returns what is wrong and what to do, or that this is not known yet.
func (r *region) explain(addr string, err error) (text string, known bool) {
	wrong, ok := errors.AsType[*peer.RegionError](err)
	switch {
	case !ok:
		return strings.TrimPrefix(err.Error(), "peer "+peer.RegionAddr(r.name, addr)+": "), true
	case wrong.Got == "":
		return fmt.Sprintf("node %q there has no region; give it --region=%s, or correct --regions here", wrong.Name, r.name), true
	case wrong.Got != r.cfg.List.self:
		return fmt.Sprintf("node %q there says that it is of region %q; correct --regions here, or --region there", wrong.Name, wrong.Got), true
	}
	switch is, known := r.cfg.Member(wrong.Boot); {
	case is:
		return fmt.Sprintf("it is the address of node %q of this region, %q; correct --regions", wrong.Name, wrong.Got), true
	case !known:
		return fmt.Sprintf("node %q there says that it is of this region, %q; this node has not joined its cluster yet", wrong.Name, wrong.Got), false
	}
	return fmt.Sprintf("two clusters say that they are region %q: this one, and that of node %q; give each region its own --region", wrong.Got, wrong.Name), true
}

// noteLocked updates what Addr and RTT return, and logs what has changed.
func (r *region) noteLocked() {
	var usable []string
	clusters := map[string]string{} // a node by cluster ID
	farthest := time.Duration(0)
	for addr, n := range r.mu.nodes {
		if n.name == "" {
			continue
		}
		usable = append(usable, peer.RegionAddr(r.name, addr))
		farthest = max(farthest, n.rtt)
		if n.cluster != "" {
			clusters[n.cluster] = fmt.Sprintf("node %s at %s", n.name, addr)
		}
	}
	slices.Sort(usable)
	reached := len(usable) > 0
	text := ""
	if len(clusters) > 1 {
		// Each would have counters of its own.
		usable = nil
		text = fmt.Sprintf("two clusters say that they are region %q: %s; nothing is sent to either: give each region its own --region", r.name,
			strings.Join(slices.Sorted(maps.Values(clusters)), ", and "))
	}
	r.problemLocked("clusters", text, "two clusters have the name of one region", false)
	r.usable.Store(&usable)
	if farthest > 0 {
		r.rtt.Store(int64(farthest))
	}
	old, state := r.mu.state, facts.RegionUnreached
	switch {
	case len(usable) > 0:
		state = facts.RegionLinked
	case reached:
		state = facts.RegionUnusable
	case len(r.mu.problems) == 0 && old == facts.RegionUnknown:
		state = old
	}
	if state == old {
		return
	}
	r.mu.state, r.mu.since = state, time.Now()
	switch {
	case !reached:
		r.log.Warn("region not reached", "reason", r.reasonLocked())
	case old == facts.RegionUnknown || old == facts.RegionUnreached:
		r.log.Info("region reached", "nodes", strings.Join(r.namesLocked(), ", "), "rtt", farthest.Round(time.Millisecond/10))
	}
}

func (r *region) namesLocked() (names []string) {
	for _, n := range r.mu.nodes {
		if n.name != "" {
			names = append(names, n.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// reasonLocked says what is wrong: everything while no node is reached, else what is serious.
func (r *region) reasonLocked() string {
	var texts []string
	reached := len(r.namesLocked()) > 0
	for _, key := range slices.Sorted(maps.Keys(r.mu.problems)) {
		if p := r.mu.problems[key]; (p.serious || !reached) && len(texts) < maxShown {
			texts = append(texts, p.text)
		}
	}
	text := []byte(strings.Join(texts, "; "))
	return strings.ToValidUTF8(string(text[:min(len(text), facts.MaxText)]), "")
}

func (r *region) status() facts.Region {
	in, out := r.cfg.Pool.Traffic(r.name).Bytes()
	r.mu.Lock()
	defer r.mu.Unlock()
	return facts.Region{
		Name: r.name, State: r.mu.state, InState: time.Since(r.mu.since), Nodes: r.namesLocked(), RTT: time.Duration(r.rtt.Load()), Reason: r.reasonLocked(), In: in, Out: out,
	}
}
