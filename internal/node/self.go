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

	"github.com/sluice-project/sluice/internal/listen"
	"github.com/sluice-project/sluice/internal/shed"
	"github.com/sluice-project/sluice/transport/forwardauth"
)

const (
	// noticeTick is how often watchSelf looks, and noticeEvery how often it logs one matter at most.
	noticeTick  = 5 * time.Second
	noticeEvery = time.Minute
	// longSleep is how long the process must not have run for a log line.
	longSleep = time.Second
)

// watchSelf logs what this node does to its clients and what happened to its address, until ctx ends.
func (n *Node) watchSelf(ctx context.Context) error {
	tick := time.NewTicker(noticeTick)
	defer tick.Stop()
	var evicted notice
	ports := make(map[string]*portNotice)
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
		for _, one := range n.listen.stats() {
			if ports[one.port] == nil {
				ports[one.port] = new(portNotice)
			}
			ports[one.port].look(n.log, one, now)
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
	told uint64
	at   time.Time
}

// due returns how much has been counted since the last time that was not 0, or 0 if that is nothing or too short ago.
func (c *notice) due(count uint64, now time.Time) (more uint64) {
	if count == c.told || !c.at.IsZero() && now.Sub(c.at) < noticeEvery {
		return 0
	}
	more, c.told, c.at = count-c.told, count, now
	return more
}

// portNotice is the notice of one port's rejected connections, and their counts when it was last logged.
type portNotice struct {
	notice
	told listen.Stats
}

func (c *portNotice) look(log *slog.Logger, s portStats, now time.Time) {
	if c.due(s.Full+s.Crowded+s.Failed, now) == 0 {
		return
	}
	log.Warn("connections were rejected, or not accepted yet for want of file descriptors: see --max-connections and the limit of open files", "port", s.port,
		"full", s.Full-c.told.Full, "of_one_address", s.Crowded-c.told.Crowded, "accept_failed", s.Failed-c.told.Failed)
	c.told = s.Stats
}

var errLostAddress = errors.New("the address that this node advertises is no longer one of this machine's, so other nodes do not reach it: restart the node, or give it --advertise")

// ownAddress is an address that this node chose to advertise, and whether the machine still has it.
type ownAddress struct {
	addr   netip.Addr // invalid if it was not chosen but given
	missed int        // looks in a row
}

// ownAddress returns the address that gossip chose of the machine's.
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

// look looks for the address among the machine's, and reports whether that is news. It is lost when two looks in a row have
// missed it: an address that is renewed may be gone for a moment.
func (a *ownAddress) look(addresses func() ([]net.Addr, error)) (changed, lost bool) {
	if !a.addr.IsValid() {
		return false, false
	}
	all, err := addresses()
	if err != nil {
		return false, false // nothing is known
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

// sleeper finds out that the process did not run. last is the time of the last look, or of the beginning.
type sleeper struct{ last int64 }

// look returns for how long the process did not run since the last look, which was to be every before now (ns of a clock that goes
// on while the process is stopped or the machine sleeps); 0 if not for long.
func (s *sleeper) look(now int64, every time.Duration) (slept time.Duration) {
	slept = time.Duration(now-s.last) - every
	s.last = now
	if slept < longSleep {
		return 0
	}
	return slept
}

// Only checks are ever turned away. What other nodes ask, health, metrics and what operators do are not:
// a node that is busy must neither look dead nor be out of reach.

// isCheck reports whether a request to the HTTP port is about checks.
func isCheck(r *http.Request) bool {
	path := r.URL.Path
	return path == "/v1/check" || path == "/v1/GetRateLimits" || strings.HasPrefix(path, forwardauth.Prefix)
}

const (
	// An idle node, of whose goroutines fewer than few have run since the last look, and at once, and which rejects nothing, looks
	// again after idleTick.
	few      = 1000
	atOnce   = time.Millisecond
	idleTick = 5 * shed.Tick
)

// watchRuntime tells the gate for how long goroutines wait for a processor, and the collector how large the heap is, until
// ctx ends. Nobody else tells the gate.
func (n *Node) watchRuntime(ctx context.Context) error {
	every := shed.Tick
	tick := time.NewTicker(every)
	defer tick.Stop()
	n.waits() // what was waited before does not count
	sleep := sleeper{n.clock()}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if slept := sleep.look(n.clock(), every); slept > 0 {
				n.log.Warn(fmt.Sprintf("this process did not run for %.1f s: it was stopped, or the machine slept or had no processor for it", slept.Seconds()))
			}
			l, ran := n.waits()
			rejects := n.gate.Observe(l)
			n.gc.look()
			next := shed.Tick
			if ran < few && l.Wait < atOnce && !rejects {
				next = idleTick
			}
			if next != every {
				every = next
				tick.Reset(every)
			}
		}
	}
}

// waits reads the runtime's account of the goroutines that can run, and of how long they have waited.
type waits struct {
	sample []metrics.Sample
	before []uint64
}

// next returns the load since the last call, and how many goroutines have run.
func (w *waits) next() (l shed.Load, ran uint64) {
	if w.sample == nil {
		w.sample = []metrics.Sample{{Name: "/sched/latencies:seconds"}, {Name: "/sched/goroutines/runnable:goroutines"}}
	}
	metrics.Read(w.sample)
	if w.sample[0].Value.Kind() != metrics.KindFloat64Histogram || w.sample[1].Value.Kind() != metrics.KindUint64 {
		return shed.Load{}, few // a runtime without them
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

// waitOf returns the wait that nine in ten of those counted in h and not in before stay within, by the lower end of its
// bucket, and how many they are.
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
