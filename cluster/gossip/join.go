package gossip

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/loglimit"
)

const (
	// maxAtOnce bounds the addresses tried in one round, in parallel.
	maxAtOnce = 16
	// An address that answered aliasAnswers times in a row and still is nobody's
	// in the view is another name of a member, or of this node: a load balancer's,
	// loopback. It is tried once per aliasPause.
	aliasAnswers = 3
	aliasPause   = 10 * time.Second
	// starting and complete scale the rejoin interval: until this node is ready,
	// and while nobody is missing.
	starting = 0.25
	complete = 4
)

// joiner contacts join targets, and members that were lost, as long as they are
// not in the view. So a cut of any length heals within seconds of its end.
type joiner struct {
	targets  []hostPort
	timing   Timing
	resolve  func(ctx context.Context, host string) ([]netip.Addr, error)
	join     func([]string) (int, error)
	registry *registry
	self     string // our own address
	log      *slog.Logger
	ready    <-chan struct{}

	attempts map[string]*attempt // by address; for run's goroutine
	quiet    *loglimit.Limiter   // of rejections, under mu

	mu struct {
		sync.Mutex
		failures map[string]string // by target: why it last failed
		rejected map[string]string // by address of a target: how it answered that this node is none of its cluster
		tries    uint64
		failed   uint64
	}
}

// attempt is what is known of an address that is tried.
type attempt struct {
	address string
	target  string // as configured; empty for a lost member
	last    time.Time
	answers int // in a row
	// rejections are how often in a row it answered and did not take this node.
	rejections int
}

func (g *Gossip) newJoiner(self netip.AddrPort) *joiner {
	j := &joiner{
		timing: g.config.Timing,
		resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return resolve(ctx, g.config.Resolver, host)
		},
		join:     g.list.Join,
		registry: g.registry,
		self:     self.String(),
		log:      g.log,
		ready:    g.ready,
		attempts: map[string]*attempt{},
	}
	j.mu.failures, j.mu.rejected = map[string]string{}, map[string]string{}
	j.quiet = loglimit.New(time.Minute)
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
		missing := j.round(j.lookUp(ctx))
		timer := time.NewTimer(j.pause(missing))
		select {
		case <-timer.C:
		case <-j.registry.vanished:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// pause returns how long to wait for the next round: one to two intervals, so
// that nodes that lost each other at once do not call each other at once.
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
	return time.Duration(scale * (1 + rand.Float64()) * float64(j.timing.RejoinInterval)) // #nosec G404 -- a pause
}

// round tries the addresses that are due, and reports whether any member or
// target is missing from the view.
func (j *joiner) round(targets map[string]string) (missing bool) {
	due, missing := j.due(targets)
	var wg sync.WaitGroup
	for _, a := range due {
		wg.Go(func() { j.try(a) })
	}
	wg.Wait()
	return missing
}

// lookUp resolves the targets, all at once, so that a slow one delays the others
// by DialTimeout at most. It returns targets by address.
func (j *joiner) lookUp(ctx context.Context) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, j.timing.DialTimeout)
	defer cancel()
	found := make([][]netip.Addr, len(j.targets))
	var wg sync.WaitGroup
	for i, t := range j.targets {
		wg.Go(func() {
			var err error
			if found[i], err = j.resolve(ctx, t.host); err != nil {
				j.note(t.String(), err)
			}
		})
	}
	wg.Wait()
	byAddress := map[string]string{}
	for i, t := range j.targets {
		for _, a := range found[i] {
			byAddress[net.JoinHostPort(a.String(), strconv.Itoa(int(t.port)))] = t.String()
		}
	}
	return byAddress
}

// due chooses among the targets' addresses and the lost members' those to try
// now: not in the view, and the ones longest not tried first.
func (j *joiner) due(targets map[string]string) (due []*attempt, missing bool) {
	alive, gone := j.registry.addresses()
	alive[j.self] = true
	wanted := targets
	for _, address := range gone {
		if _, ok := wanted[address]; !ok {
			wanted[address] = ""
		}
	}
	attempts := map[string]*attempt{}
	for address, target := range wanted {
		if alive[address] {
			j.clearFailure(target)
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
	j.forgetRejected(attempts)
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
		// Where both sides still remember each other as dead, the first exchange
		// only tells each that it is thought dead; its objection is in the second.
		if alive, _ := j.registry.addresses(); !alive[a.address] {
			_, err = j.join([]string{a.address})
		}
	}
	if err != nil {
		err = headOf(err)
		a.answers = 0
	} else {
		a.answers++
	}
	if a.target != "" {
		j.note(a.target, err)
		j.judge(a, err)
	}
	j.mu.Lock()
	j.mu.tries++
	if err != nil {
		j.mu.failed++
	}
	j.mu.Unlock()
}

// note keeps the last error of a target, nil for none, and logs it.
func (j *joiner) note(target string, err error) {
	text := ""
	if err != nil {
		text = strings.TrimPrefix(err.Error(), "failed to join "+target+": ")
		j.log.Debug("join target does not answer", "target", target, "error", text)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.failures[target] = text
}

// clearFailure drops the last error of a target that has been met meanwhile.
func (j *joiner) clearFailure(target string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.mu.failures, target)
}

// headOf returns the first error of memberlist's list.
func headOf(err error) error {
	if head := errors.Unwrap(err); head != nil {
		return head
	}
	return err
}

// failures returns why each target that failed last did, as "target: error".
func (j *joiner) failures() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []string
	for target, text := range j.mu.failures {
		if text != "" {
			all = append(all, target+": "+text)
		}
	}
	slices.Sort(all)
	return all
}
