package node

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster"
	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/internal/inflow"
	"github.com/sluice-project/sluice/internal/reload"
	"github.com/sluice-project/sluice/internal/rulefiles"
	"github.com/sluice-project/sluice/internal/shed"
	"github.com/sluice-project/sluice/internal/timing"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/peer"
)

// metricsHandler serves the node's own registry, so that several nodes of one
// process do not mix.
func (n *Node) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&collector{read: n.snapshot},
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// snapshot is what all parts count, read once for a scrape.
type snapshot struct {
	version string
	service limiter.Stats
	cluster cluster.Stats
	table   bucket.Stats
	domains []bucket.DomainStats
	pool    peer.PoolStats
	server  peer.ServerStats
	unread  inflow.Stats // of the gRPC port
	gossip  gossip.Stats
	rules   rulefiles.Status
	keeper  keeperStats
	secrets []secretStatus
	refused []access.Refused
	// TLS handshakes that failed.
	failedGRPC, failedHTTP, failedPeer uint64
	ports                              connections
	spans                              spanStats
	load                               shed.Stats
	watchers                           int
	ready                              bool
}

// secretStatus is how following files with keys goes.
type secretStatus struct {
	label   string
	status  reload.Status
	expires time.Time // zero where there is no certificate
	left    float64   // of its life
}

func (n *Node) snapshot() snapshot {
	s := snapshot{
		version: n.config.Version,
		service: n.service.Stats(), cluster: n.cluster.Stats(), table: n.table.Stats(),
		keeper: n.keeper.stats(), spans: n.spans.stats(), pool: n.peers.Stats(), server: n.peerServer.Stats(), gossip: n.gossip.Stats(),
	}
	if n.rules != nil {
		s.rules = n.rules.Status()
	}
	s.domains = n.table.Domains()
	s.refused = n.guard.Stats()
	for _, files := range n.secrets {
		st := secretStatus{label: files.label, status: files.files.Status()}
		if files.certificate != nil {
			st.expires, st.left = files.certificate.Expires(), files.certificate.LifeLeft(time.Now())
		}
		s.secrets = append(s.secrets, st)
	}
	s.ports = n.listen.stats()
	s.unread = n.grpcDoor.Unread()
	s.failedGRPC, s.failedHTTP, s.failedPeer = n.tls.failedGRPC.Load(), n.tls.failedHTTP.Load(), n.tls.failedPeer.Load()
	s.load = n.gate.Stats()
	s.watchers = n.hub.Watchers()
	s.ready, _ = n.Ready()
	return s
}

// sample is one number of a family and the values of its labels.
type sample struct {
	labels []string
	value  float64
	times  timing.Snapshot // of a histogram, in place of value
}

// histogram is the kind of families whose samples are times. prometheus has no name for it.
const histogram prometheus.ValueType = -1

// family is one metric and how it is read from a snapshot.
type family struct {
	name, help string
	labels     []string
	desc       *prometheus.Desc
	kind       prometheus.ValueType
	samples    func(s *snapshot) []sample
}

// collector maps plain counters to Prometheus at every scrape.
type collector struct{ read func() snapshot }

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.read()
	for _, f := range families {
		for _, one := range f.samples(&s) {
			if f.kind == histogram {
				out <- histogramOf(f.desc, &one)
			} else {
				out <- prometheus.MustNewConstMetric(f.desc, f.kind, one.value, one.labels...)
			}
		}
	}
}

func histogramOf(desc *prometheus.Desc, s *sample) prometheus.Metric {
	l := s.times
	buckets := make(map[float64]uint64, len(l.Bounds))
	var below uint64
	for i, bound := range l.Bounds {
		below += l.Counts[i]
		buckets[bound.Seconds()] = below
	}
	return prometheus.MustNewConstHistogram(desc, l.Count(), l.Sum.Seconds(), buckets, s.labels...)
}

func counter(name, help string, value func(*snapshot) uint64) family {
	return single(name, help, prometheus.CounterValue, func(s *snapshot) float64 { return float64(value(s)) })
}

func gauge(name, help string, value func(*snapshot) float64) family {
	return single(name, help, prometheus.GaugeValue, value)
}

// nanos is a family of seconds, from ns.
func nanos(name, help string, kind prometheus.ValueType, value func(*snapshot) int64) family {
	return single(name, help, kind, func(s *snapshot) float64 { return float64(value(s)) / 1e9 })
}

func single(name, help string, kind prometheus.ValueType, value func(*snapshot) float64) family {
	return newFamily(name, help, nil, kind, func(s *snapshot) []sample {
		return []sample{{value: value(s)}}
	})
}

func counters(name, help string, labels []string, samples func(*snapshot) []sample) family {
	return newFamily(name, help, labels, prometheus.CounterValue, samples)
}

// durations is a family of histograms, in seconds.
func durations(name, help string, labels []string, samples func(*snapshot) []sample) family {
	return newFamily(name, help, labels, histogram, samples)
}

func newFamily(name, help string, labels []string, kind prometheus.ValueType, samples func(*snapshot) []sample) family {
	return family{name, help, labels, prometheus.NewDesc(name, help, labels, nil), kind, samples}
}

func gauges(name, help string, labels []string, samples func(*snapshot) []sample) family {
	return newFamily(name, help, labels, prometheus.GaugeValue, samples)
}

// by is the samples of a family with one label.
func by(pairs ...any) []sample {
	list := make([]sample, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, sample{labels: []string{pairs[i].(string)}, value: float64(pairs[i+1].(uint64))})
	}
	return list
}

// byDomain returns a sample for each domain that the table accounts for.
func byDomain(s *snapshot, value func(d *bucket.DomainStats) float64) []sample {
	list := make([]sample, len(s.domains))
	for i := range s.domains {
		list[i] = sample{labels: []string{s.domains[i].Name}, value: value(&s.domains[i])}
	}
	return list
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
