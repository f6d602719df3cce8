package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/listen"
	"github.com/sluicecluster/sluice/internal/shed"
	"github.com/sluicecluster/sluice/transport/forwardauth"
)

const (
	selfCheckEvery = 5 * time.Second // between two checks of watchSelf
	logEvery       = time.Minute     // between two log lines about one subject
	longSleep      = time.Second     // the shortest pause of the process that is logged
)

// watchSelf logs evictions, rejected connections and the loss of this node's address, until ctx ends.
func (n *Node) watchSelf(ctx context.Context) error {
	tick := time.NewTicker(selfCheckEvery)
	defer tick.Stop()
	var evicted notice
	ports := make([]portNotice, len(portLabels))
	address := n.ownAddress()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		if more := evicted.due(n.table.Stats().EvictedLive, now); more > 0 {
			n.log.Warn("counters were evicted although they still counted, and their keys have a fresh limit: raise --memory-limit, or add nodes", "evicted", more)
		}
		for i, port := range n.listen.stats() {
			ports[i].look(n.log, port, now)
		}
		if changed, lost := address.look(net.InterfaceAddrs); changed {
			n.lostAddress.Store(lost)
			if lost {
				n.log.Error(errLostAddress.Error(), "address", address.addr)
			} else {
				n.log.Info("the address that this node advertises is back", "address", address.addr)
			}
			ready, _ := n.Ready()
			n.grpcAPI.SetReady(ready)
			if n.leaving.Load() { // meanwhile
				n.grpcAPI.SetReady(false)
			}
		}
	}
}

// notice says when a count is to be logged.
type notice struct {
	logged uint64
	at     time.Time
}

// due returns the increase of count since it was last logged, or 0 if there is none or logEvery is not over.
func (c *notice) due(count uint64, now time.Time) (more uint64) {
	if count == c.logged || !c.at.IsZero() && now.Sub(c.at) < logEvery {
		return 0
	}
	more, c.logged, c.at = count-c.logged, count, now
	return more
}

// portNotice is the notice of one port's rejected connections, with the counts that were logged last.
type portNotice struct {
	notice
	last listen.Stats
}

func (c *portNotice) look(log *slog.Logger, s portStats, now time.Time) {
	if c.due(s.Full+s.Crowded+s.Failed, now) == 0 {
		return
	}
	log.Warn("connections were rejected, or not accepted yet for want of file descriptors: see --max-connections and the limit of open files", "port", s.port,
		"full", s.Full-c.last.Full, "of_one_address", s.Crowded-c.last.Crowded, "accept_failed", s.Failed-c.last.Failed)
	c.last = s.Stats
}

var errLostAddress = errors.New("the address that this node advertises is no longer one of this machine's, so other nodes do not reach it: restart the node, or give it --advertise")

// ownAddress follows whether the machine still has the address that gossip chose to advertise.
type ownAddress struct {
	addr   netip.Addr // invalid if the address is configured
	missed int        // looks in a row
}

// ownAddress returns the address that gossip chose among the machine's.
func (n *Node) ownAddress() *ownAddress {
	bind, err := netip.ParseAddr(n.config.Bind)
	if n.config.Advertise != "" || err != nil || !bind.IsUnspecified() {
		return &ownAddress{}
	}
	chosen, err := netip.ParseAddrPort(n.gossip.Addr())
	if err != nil || chosen.Addr().IsLoopback() {
		return &ownAddress{}
	}
	return &ownAddress{addr: chosen.Addr()}
}

// look looks for the address among the machine's, and reports whether the result has changed. The address is lost when two looks
// in a row miss it: during a renewal it may be missing for a moment.
func (a *ownAddress) look(addresses func() ([]net.Addr, error)) (changed, lost bool) {
	if !a.addr.IsValid() {
		return false, false
	}
	all, err := addresses()
	if err != nil {
		return false, false
	}
	if slices.ContainsFunc(all, func(one net.Addr) bool {
		p, ok := one.(*net.IPNet)
		if !ok {
			return false
		}
		ip, _ := netip.AddrFromSlice(p.IP)
		return ip.Unmap() == a.addr
	}) {
		changed, a.missed = a.missed >= 2, 0
		return changed, false
	}
	a.missed++
	return a.missed == 2, true
}

// sleeper detects that the process did not run. last is the time of the last look, or of the start.
type sleeper struct{ last int64 }

// check returns for how long the process did not run since the last look, 0 if for less than longSleep. now is in ns of a clock
// that goes on while the process is stopped or the machine sleeps, and every is the interval of looks.
func (s *sleeper) check(now int64, every time.Duration) (slept time.Duration) {
	slept = time.Duration(now-s.last) - every
	s.last = now
	if slept < longSleep {
		return 0
	}
	return slept
}

// isCheck reports whether a request to the HTTP port has checks or takes units of a reservation. Only these are rejected under overload, never calls of other nodes,
// health, metrics and operators: an overloaded node must not look dead, and must stay operable.
func isCheck(r *http.Request) bool {
	switch path := r.URL.Path; path {
	case "/v1/check", "/v1/read", "/v1/charge", "/v1/refund", "/v1/reserve", "/v1/spend", "/v1/extend", "/v1/GetRateLimits":
		return true
	default:
		return strings.HasPrefix(path, forwardauth.Prefix)
	}
}

const (
	idleGoroutines = 1000             // goroutines of an idle node that have run between two looks, at most
	idleWait       = time.Millisecond // the longest wait of their p90
	idleTick       = 5 * shed.Tick    // between two looks at an idle node that rejects nothing
)

// watchRuntime reports to the gate how long goroutines wait for a processor, and tunes the garbage collector, until ctx ends.
func (n *Node) watchRuntime(ctx context.Context) error {
	every := shed.Tick
	tick := time.NewTicker(every)
	defer tick.Stop()
	n.schedLoad() // earlier waits do not count
	sleep := sleeper{n.clock()}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if slept := sleep.check(n.clock(), every); slept > 0 {
				n.log.Warn(fmt.Sprintf("this process did not run for %.1f s: it was stopped, or the machine slept or had no processor for it", slept.Seconds()))
			}
			l, ran := n.schedLoad()
			rejects := n.gate.Observe(l)
			n.gc.adjust()
			next := shed.Tick
			if ran < idleGoroutines && l.Wait < idleWait && !rejects {
				next = idleTick
			}
			if next != every {
				every = next
				tick.Reset(every)
			}
		}
	}
}

// schedMetrics reads the runtime's metrics of runnable goroutines and their scheduling latency.
type schedMetrics struct {
	sample []metrics.Sample
	before []uint64
}

// next returns the load since the last call, and the number of goroutines that have run.
func (w *schedMetrics) next() (l shed.Load, ran uint64) {
	if w.sample == nil {
		w.sample = []metrics.Sample{{Name: "/sched/latencies:seconds"}, {Name: "/sched/goroutines/runnable:goroutines"}}
	}
	metrics.Read(w.sample)
	if w.sample[0].Value.Kind() != metrics.KindFloat64Histogram || w.sample[1].Value.Kind() != metrics.KindUint64 {
		return shed.Load{}, idleGoroutines // a runtime without them
	}
	h := w.sample[0].Value.Float64Histogram()
	if w.before == nil {
		w.before = make([]uint64, len(h.Counts))
	}
	l.Waiting = int(w.sample[1].Value.Uint64())
	l.Wait, ran = waitOf(h, w.before)
	copy(w.before, h.Counts)
	return l, ran
}

// waitOf returns the p90 of the waits counted in h and not in before, by the lower end of its bucket, and their number.
func waitOf(h *metrics.Float64Histogram, before []uint64) (wait time.Duration, all uint64) {
	var longer uint64
	for i, n := range h.Counts {
		all += n - before[i]
	}
	for i := len(h.Counts) - 1; i >= 0; i-- {
		if longer += h.Counts[i] - before[i]; longer > all/10 {
			return time.Duration(max(0, h.Buckets[i]) * float64(time.Second)), all
		}
	}
	return 0, all
}
