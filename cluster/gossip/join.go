package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
)

const (
	// maxAtOnce bounds the addresses tried in one round, in parallel.
	maxAtOnce = 16
	// An address that answered aliasAnswers times in a row and is still no member's is another name of a member or of this
	// node, for example a load balancer's. It is tried once per aliasPause.
	aliasAnswers = 3
	aliasPause   = 10 * time.Second
	// starting and complete scale the rejoin interval: until this node is ready, and while no member is missing.
	starting = 0.25
	complete = 4
)

// joiner contacts join targets, and members that were lost, as long as they are not in the view. So any network partition heals
// within seconds of its end.
type joiner struct {
	targets  []Target
	config   *Config
	join     func([]string) (int, error)
	registry *registry
	self     string // our own address
	log      *slog.Logger
	ready    <-chan struct{}

	attempts map[string]*attempt // by address; for run's goroutine
	quiet    *loglimit.Limiter   // of rejections

	tries, failed atomic.Uint64
	allAnswered   atomic.Bool // see AllAnswered

	mu struct {
		sync.Mutex
		failures map[string]string // by target: its last error
		rejected map[string]string // by address of a target: why it rejects this node
	}
}

// attempt is the state of an address that is tried.
type attempt struct {
	address    string
	target     string // as configured; empty for a lost member
	last       time.Time
	answers    int // in a row
	rejections int // in a row
}

func (g *Gossip) newJoiner(self netip.AddrPort) *joiner {
	j := &joiner{
		config:   &g.config,
		join:     g.list.Join,
		registry: g.registry,
		self:     self.String(),
		log:      g.log,
		ready:    g.ready,
		attempts: map[string]*attempt{},
		quiet:    loglimit.New(time.Minute),
	}
	j.mu.failures, j.mu.rejected = map[string]string{}, map[string]string{}
	for _, s := range g.config.Join {
		if t, err := parseHostPort(s, DefaultPort, 0); err == nil { // validated in Open
			j.targets = append(j.targets, t)
		}
	}
	return j
}

// run makes rounds until ctx ends.
func (j *joiner) run(ctx context.Context) {
	for {
		targets, all := j.lookUp(ctx)
		missing := j.round(targets)
		for _, a := range j.attempts {
			all = all && (a.target == "" || a.answers >= aliasAnswers)
		}
		j.allAnswered.Store(all)
		select {
		case <-time.After(j.pause(missing)):
		case <-j.registry.vanished:
		case <-ctx.Done():
			return
		}
	}
}

// pause returns how long to wait for the next round: one to two intervals, at random, so that nodes that lost each other do not
// call each other at the same time.
func (j *joiner) pause(missing bool) time.Duration {
	scale := 1.0
	select {
	case <-j.ready:
		if !missing {
			scale = complete
		}
	default:
		scale = starting
	}
	return time.Duration(scale * (1 + rand.Float64()) * float64(j.config.RejoinInterval)) // #nosec G404 -- a pause
}

// round tries the addresses that are due, and reports whether any member or target is missing from the view.
func (j *joiner) round(targets map[string]string) (missing bool) {
	due, missing := j.due(targets)
	var wg sync.WaitGroup
	for _, a := range due {
		wg.Go(func() { j.try(a) })
	}
	wg.Wait()
	return missing
}

// lookUp resolves the targets in parallel, within DialTimeout. It returns targets by address, and
// whether all have one.
func (j *joiner) lookUp(ctx context.Context) (byAddress map[string]string, all bool) {
	ctx, cancel := context.WithTimeout(ctx, j.config.DialTimeout)
	defer cancel()
	var failed atomic.Bool
	byAddress = LookUp(ctx, j.config.Resolver, j.targets, func(t Target, err error) {
		failed.Store(true)
		j.note(t.String(), err)
	})
	return byAddress, !failed.Load()
}

// LookUp resolves targets in parallel, until ctx ends, and returns them by address. It calls failed, concurrently, for those that
// have none. r may be nil for net.DefaultResolver.
func LookUp(ctx context.Context, r Resolver, targets []Target, failed func(Target, error)) map[string]string {
	if r == nil {
		r = net.DefaultResolver
	}
	found := make([][]netip.Addr, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() {
			var err error
			if found[i], err = resolve(ctx, r, t.host); err != nil {
				failed(t, err)
			}
		})
	}
	wg.Wait()
	byAddress := map[string]string{}
	for i, t := range targets {
		for _, a := range found[i] {
			byAddress[net.JoinHostPort(a.String(), strconv.Itoa(int(t.port)))] = t.String()
		}
	}
	return byAddress
}

// due chooses the addresses of targets and lost members to try now: those not in the view, and the ones longest not tried first.
func (j *joiner) due(targets map[string]string) (due []*attempt, missing bool) {
	alive, gone := j.registry.addresses()
	alive[j.self] = true
	for _, address := range gone {
		if _, ok := targets[address]; !ok {
			targets[address] = ""
		}
	}
	attempts := map[string]*attempt{}
	for address, target := range targets {
		if alive[address] {
			j.note(target, nil)
			continue
		}
		a := j.attempts[address]
		if a == nil {
			a = &attempt{address: address}
		}
		a.target = target
		attempts[address] = a
		if a.answers < aliasAnswers || time.Since(a.last) >= aliasPause {
			due = append(due, a)
		}
		missing = missing || a.answers < aliasAnswers
	}
	j.attempts = attempts
	j.mu.Lock()
	maps.DeleteFunc(j.mu.rejected, func(address, _ string) bool { return attempts[address] == nil })
	j.mu.Unlock()
	slices.SortFunc(due, func(a, b *attempt) int {
		return cmp.Or(a.last.Compare(b.last), cmp.Compare(a.address, b.address))
	})
	return due[:min(len(due), maxAtOnce)], missing
}

// try exchanges state with one address.
func (j *joiner) try(a *attempt) {
	a.last = time.Now()
	_, err := j.join([]string{a.address})
	if err == nil {
		// If both sides believe each other dead, each learns that in the first exchange and objects in the second.
		if alive, _ := j.registry.addresses(); !alive[a.address] {
			_, err = j.join([]string{a.address})
		}
	}
	j.tries.Add(1)
	if err != nil {
		j.failed.Add(1)
		err = cmp.Or(errors.Unwrap(err), err) // the first of memberlist's list
		a.answers = 0
	} else {
		a.answers++
	}
	if a.target != "" {
		j.note(a.target, err)
		j.judge(a, err)
	}
}

// note logs and keeps the last error of a target; nil for none.
func (j *joiner) note(target string, err error) {
	if err == nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.mu.failures, target)
		return
	}
	text := strings.TrimPrefix(err.Error(), "failed to join "+target+": ")
	if strings.HasPrefix(text, "read ") && strings.Contains(text, "timeout") {
		text = "it accepts connections and sends no gossip: is it the gossip port, 7463 by default? (" + text + ")"
	}
	j.log.Debug("join target does not answer", "target", target, "error", text)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.failures[target] = text
}

// failures returns the last error of each failing target, as "target: error".
func (j *joiner) failures() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []string
	for target, text := range j.mu.failures {
		all = append(all, target+": "+text)
	}
	slices.Sort(all)
	return all
}

// certain is how many rejections in a row count: a single one may come from a process that is stopping.
const certain = 2

// judge notes whether a join target rejects this node.
func (j *joiner) judge(a *attempt, err error) {
	why := rejection(err)
	if a.rejections++; why == "" {
		a.rejections = 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if a.rejections < certain {
		delete(j.mu.rejected, a.address)
		return
	}
	text := fmt.Sprintf("%s (--join %s): %s", a.address, a.target, why)
	j.mu.rejected[a.address] = text
	if j.quiet.Allow(time.Now(), a.address) { // not text, which has the ports of connections
		j.log.Error("rejected by a join target: this node is not part of that cluster, and is not ready until this is cured",
			"address", a.address, "target", a.target, "reason", why)
	}
}

// Rejected returns why join targets reject this node and what to do about it, by their addresses.
func (g *Gossip) Rejected() map[string]string {
	j := g.joiner
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.mu.rejected)
}

// AllAnswered reports whether each address of the join targets, when they were last tried, was one
// of a member in the View or of this node.
func (g *Gossip) AllAnswered() bool {
	if !g.joiner.allAnswered.Load() {
		return false
	}
	g.publish() // members that have answered just now
	return true
}

// LongestRejoin is the longest time until members that do not have this node in their view have tried its address.
func (g *Gossip) LongestRejoin() time.Duration {
	return 2*g.config.RejoinInterval + probeTimeout
}

// Failures returns the join targets that do not answer, as "target: error".
func (g *Gossip) Failures() []string { return g.joiner.failures() }

// rejection explains the error of an exchange with a peer that has answered; "" if it did not answer. memberlist's errors are texts.
func rejection(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case has("dial ", "resolve", "lookup ", "timeout", "deadline exceeded", "use of closed"):
		return ""
	case has("placement is", "region is"):
		return text[max(0, strings.Index(text, "its ")):]
	case has("not encrypted"):
		return "it does not encrypt gossip: give the gossip port in --join, 7463 by default, or its node the same --secret-file and --gossip-keyring (" + text + ")"
	case has("encrypt", "decrypt"):
		return "secret or keyring differs: give all nodes the same --secret-file and --gossip-keyring (" + text + ")"
	case has("msgType", "unsupported", "msgpack", "missing message type"):
		return "it is no gossip port: give the gossip port in --join, 7463 by default (" + text + ")"
	case has("EOF", "reset by peer", "broken pipe"):
		return "it closes the connection: secret or keyring differs (give all nodes the same --secret-file and --gossip-keyring), " +
			"or it is no gossip port (" + text + ")"
	}
	return text
}
