package node

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster"
	"github.com/sluicecluster/sluice/cluster/gossip"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/internal/reload"
	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/internal/shed"
	"github.com/sluicecluster/sluice/internal/timing"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/peer"
)

// metricsHandler serves a registry of this node alone, for processes of several nodes.
func (n *Node) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&collector{read: n.snapshot},
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// snapshot has the counts of all parts, read once for a scrape.
type snapshot struct {
	version   string
	service   limiter.Stats
	cluster   cluster.Stats
	table     bucket.Stats
	domains   []bucket.DomainStats
	pool      peer.PoolStats
	server    peer.ServerStats
	unread    inflow.Stats // of the gRPC port
	gossip    gossip.Stats
	rules     rulefiles.Status
	snapshots snapshotStats
	secrets   []secretStatus
	rejected  []access.Rejected
	ports     []portStats
	spans     spanStats
	regions   []facts.Region
	load      shed.Stats
	watchers  int
	ready     bool
	lostLines uint64 // of the log

	failedGRPC, failedHTTP, failedPeer uint64 // TLS handshakes
}

// secretStatus is the state of followed files.
type secretStatus struct {
	label   string
	status  reload.Status
	expires time.Time // zero without a certificate
	left    float64   // of its life
}

func (n *Node) snapshot() snapshot {
	s := snapshot{
		version: n.config.Version, service: n.service.Stats(), cluster: n.cluster.Stats(), table: n.table.Stats(), domains: n.table.Domains(),
		pool: n.peers.Stats(), server: n.peerServer.Stats(), unread: n.grpcAPI.Unread(), gossip: n.gossip.Stats(), snapshots: n.snapshotter.stats(),
		rejected: n.guard.Stats(), ports: n.listen.stats(), spans: n.spans.stats(), load: n.gate.Stats(), watchers: n.hub.Watchers(),
		failedGRPC: n.tls.failedGRPC.Load(), failedHTTP: n.tls.failedHTTP.Load(), failedPeer: n.tls.failedPeer.Load(),
	}
	s.ready, _ = n.Ready()
	if n.rules != nil {
		s.rules = n.rules.Status()
	}
	if n.config.LostLogLines != nil {
		s.lostLines = n.config.LostLogLines()
	}
	s.secrets, s.regions = n.secretStatuses(), n.regionStates()
	return s
}

// secretStatuses returns the state of the files with secrets.
func (n *Node) secretStatuses() (list []secretStatus) {
	for _, files := range n.secrets {
		st := secretStatus{label: files.label, status: files.files.Status()}
		if files.certificate != nil {
			st.expires, st.left = files.certificate.Expires(), files.certificate.LifeLeft(time.Now())
		}
		list = append(list, st)
	}
	return list
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

// histogram is the kind of families with times: prometheus has no ValueType for it.
const histogram prometheus.ValueType = -1

// collector maps plain counters to Prometheus at every scrape.
type collector struct{ read func() snapshot }

// Describe implements prometheus.Collector. It describes nothing: labels become known at a scrape.
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

// scrape builds families. Samples are added to the last one.
type scrape struct{ list []family }

func (m *scrape) add(s sample) {
	last := &m.list[len(m.list)-1]
	last.samples = append(last.samples, s)
}

// counters, gauges and durations begin a family with labels; durations are in seconds.
func (m *scrape) counters(name, help string, labels ...string) {
	m.list = append(m.list, family{name, help, labels, prometheus.CounterValue, nil})
}

func (m *scrape) gauges(name, help string, labels ...string) {
	m.list = append(m.list, family{name, help, labels, prometheus.GaugeValue, nil})
}

func (m *scrape) durations(name, help string, labels ...string) {
	m.list = append(m.list, family{name, help, labels, histogram, nil})
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

func (m *scrape) sample(value float64, labels ...string)    { m.add(sample{labels: labels, value: value}) }
func (m *scrape) times(t timing.Snapshot, labels ...string) { m.add(sample{labels: labels, times: t}) }

// by adds samples of one label each, given in pairs of the label's value and a uint64.
func (m *scrape) by(pairs ...any) {
	for i := 0; i+1 < len(pairs); i += 2 {
		m.sample(float64(pairs[i+1].(uint64)), pairs[i].(string))
	}
}

// rules adds the results that there were: of ten thousand rules most have none.
func (m *scrape) rules(all []limiter.RuleStats) {
	for _, r := range all {
		for i, n := range r.Results {
			if n > 0 {
				m.sample(float64(n), r.Domain, r.Name, limiter.ResultNames[i])
			}
		}
	}
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// unix is t in Unix time, 0 for the zero time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
