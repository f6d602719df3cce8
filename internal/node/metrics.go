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
	version  string
	service  limiter.Stats
	cluster  cluster.Stats
	table    bucket.Stats
	domains  []bucket.DomainStats
	pool     peer.PoolStats
	server   peer.ServerStats
	unread   inflow.Stats // of the gRPC port
	gossip   gossip.Stats
	rules    rulefiles.Status
	keeper   keeperStats
	secrets  []secretStatus
	rejected []access.Rejected
	// TLS handshakes that failed.
	failedGRPC, failedHTTP, failedPeer uint64
	ports                              []portStats
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
	s.rejected = n.guard.Stats()
	for _, files := range n.secrets {
		st := secretStatus{label: files.label, status: files.files.Status()}
		if files.certificate != nil {
			st.expires, st.left = files.certificate.Expires(), files.certificate.LifeLeft(time.Now())
		}
		s.secrets = append(s.secrets, st)
	}
	s.ports = n.listen.stats()
	s.unread = n.grpcAPI.Unread()
	s.failedGRPC, s.failedHTTP, s.failedPeer = n.tls.failedGRPC.Load(), n.tls.failedHTTP.Load(), n.tls.failedPeer.Load()
	s.load = n.gate.Stats()
	s.watchers = n.hub.Watchers()
	s.ready, _ = n.Ready()
	return s
}

// family is one metric and its samples.
type family struct {
	name, help string
	labels     []string
	kind       prometheus.ValueType
	samples    []sample
}

// sample is one number of a family and the values of its labels.
type sample struct {
	labels []string
	value  float64
	times  timing.Snapshot // of a histogram, in place of value
}

// histogram is the kind of families whose samples are times. prometheus has no name for it.
const histogram prometheus.ValueType = -1

// collector maps plain counters to Prometheus at every scrape.
type collector struct{ read func() snapshot }

// Describe implements prometheus.Collector. It tells nothing: what there is becomes known at a scrape.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.read()
	for _, f := range s.families() {
		desc := prometheus.NewDesc(f.name, f.help, f.labels, nil)
		for _, one := range f.samples {
			if f.kind == histogram {
				out <- histogramOf(desc, &one)
			} else {
				out <- prometheus.MustNewConstMetric(desc, f.kind, one.value, one.labels...)
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

// scrape is families in the making: the samples that are added are those of the last one.
type scrape struct{ list []family }

func (m *scrape) family(kind prometheus.ValueType, name, help string, labels []string) {
	m.list = append(m.list, family{name: name, help: help, labels: labels, kind: kind})
}

func (m *scrape) add(s sample) {
	last := &m.list[len(m.list)-1]
	last.samples = append(last.samples, s)
}

// counters, gauges and durations begin a family with labels; durations are in seconds.
func (m *scrape) counters(name, help string, labels ...string) {
	m.family(prometheus.CounterValue, name, help, labels)
}

func (m *scrape) gauges(name, help string, labels ...string) {
	m.family(prometheus.GaugeValue, name, help, labels)
}

func (m *scrape) durations(name, help string, labels ...string) {
	m.family(histogram, name, help, labels)
}

// counter, seconds and gauge are families of one sample.
func (m *scrape) counter(name, help string, value uint64) { m.seconds(name, help, float64(value)) }

func (m *scrape) seconds(name, help string, value float64) {
	m.counters(name, help)
	m.sample(value)
}

func (m *scrape) gauge(name, help string, value float64) {
	m.gauges(name, help)
	m.sample(value)
}

func (m *scrape) sample(value float64, labels ...string) {
	m.add(sample{labels: labels, value: value})
}

func (m *scrape) times(t timing.Snapshot, labels ...string) { m.add(sample{labels: labels, times: t}) }

// by adds samples of one label each, given as the label's value and a uint64 in turn.
func (m *scrape) by(pairs ...any) {
	for i := 0; i+1 < len(pairs); i += 2 {
		m.sample(float64(pairs[i+1].(uint64)), pairs[i].(string))
	}
}

func (m *scrape) rules(all []limiter.RuleStats) {
	for _, r := range all {
		m.sample(float64(r.Allowed), r.Domain, r.Name, "allowed")
		m.sample(float64(r.Denied), r.Domain, r.Name, "denied")
		m.sample(float64(r.Shadowed), r.Domain, r.Name, "shadowed")
		m.sample(float64(r.Errors), r.Domain, r.Name, "error")
	}
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// unix is t in Unix time, 0 for none.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
