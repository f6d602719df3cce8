package node

import (
	goflag "flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
)

const metricsDoc = "../../docs/metrics.md"

var update = goflag.Bool("update", false, "write docs/metrics.md anew")

// metricChapters are the headings of docs/metrics.md, and the family that each begins with.
var metricChapters = []struct{ from, title string }{
	{"sluice_build_info", "Is it serving, and by which rules?"},
	{"sluice_calls_total", "What does it decide?"},
	{"sluice_answers_total", "Who decides?"},
	{"sluice_forwards_total", "Does forwarding work?"},
	{"sluice_lease_granted_units_total", "What is granted, and what is decided eventually?"},
	{"sluice_forward_retries_total", "What does not arrive at once?"},
	{"sluice_peer_connections", "How are the ways to other nodes?"},
	{"sluice_connections", "What does it bear?"},
	{"sluice_counters", "What does it hold?"},
	{"sluice_members", "Who is there?"},
	{"sluice_right", "Who counts, and who holds what?"},
	{"sluice_handoffs_total", "What moves?"},
	{"sluice_snapshot_timestamp_seconds", "What is on disk?"},
	{"sluice_trace_spans_total", "Are traces sent?"},
	{"sluice_ring_builds_total", "The ring"},
}

// openLabels are labels whose values come from outside the program, and what bounds them.
var openLabels = map[string]string{
	"domain":     "a domain of the rule files",
	"rule":       "a rule in force; its name",
	"pool":       "a pool in force; its name",
	"descriptor": "a rule's path with values that came, at most 1,000 in all, or `other`",
	"version":    "one",
	"primary":    "one, 8 hex digits",
}

// docs/metrics.md is what the program says of its metrics.
func TestMetricsDoc(t *testing.T) {
	want, faults := metricsText()
	for _, f := range faults {
		t.Error(f)
	}
	if *update {
		if err := os.WriteFile(metricsDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(metricsDoc)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/metrics.md is not what the program has; write it with: go test ./internal/node -run TestMetricsDoc -update")
	}
}

func metricsText() (text string, faults []string) {
	var b strings.Builder
	b.WriteString(`# Metrics

Every metric that a node shows at ` + "`/metrics`" + ` on its HTTP port, in the words of the program. This page is written by
` + "`go test ./internal/node -run TestMetricsDoc -update`" + `, and a test holds it against the code. How to read them stands in
[operations](operations.md#metrics), what to do when one of them looks wrong in [troubleshooting](troubleshooting.md).

All are of this node since its start. Labels have few values: those listed, or as many as the rule files have domains, rules and
pools. None but ` + "`descriptor`" + `, which is bounded, has a value out of a check, so no caller can make series without end. The Go runtime's (` + "`go_…`" + `) and the process's own metrics
(` + "`process_…`" + `) are there too.
`)
	chapters := metricChapters
	for _, f := range specimen().families() {
		if len(chapters) > 0 && f.name == chapters[0].from {
			fmt.Fprintf(&b, "\n## %s\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n", chapters[0].title)
			chapters = chapters[1:]
		}
		labels, fs := labelsText(&f)
		faults = append(faults, fs...)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, kindText(f.kind), labels, strings.ReplaceAll(f.help, "|", `\|`))
	}
	for _, c := range chapters {
		faults = append(faults, fmt.Sprintf("no metric %s to begin the chapter %q with, or in another order", c.from, c.title))
	}
	return b.String(), faults
}

func kindText(k prometheus.ValueType) string {
	switch k {
	case histogram:
		return "histogram"
	case prometheus.CounterValue:
		return "counter"
	}
	return "gauge"
}

// specimen is a snapshot in which every family has all the samples that it can have, with one domain,
// rule and pool.
func specimen() *snapshot {
	var s snapshot
	for _, label := range secretLabels {
		s.secrets = append(s.secrets, secretStatus{label: label})
		if strings.HasSuffix(label, "tls") {
			s.secrets[len(s.secrets)-1].expires = time.Unix(1, 0)
		}
	}
	for _, label := range portLabels {
		s.ports = append(s.ports, portStats{port: label})
	}
	s.rejected = access.NewGuard(nil, nil, nil).Stats()
	s.gossip.Keys, s.gossip.Primary = 1, "01234567"
	s.service.Unmatched = map[string]uint64{"domain": 1, limiter.UnknownDomains: 1}
	s.service.Rules = []limiter.RuleStats{{Domain: "domain", Name: "rule"}}
	s.service.Descriptors = []limiter.RuleStats{{Domain: "domain", Name: "descriptor"}}
	s.service.Pools = []limiter.PoolStats{{Domain: "domain", Name: "pool"}}
	for d := limiter.OtherAPI; d == limiter.OtherAPI || d.String() != limiter.OtherAPI.String(); d++ {
		s.service.APIs = append(s.service.APIs, limiter.APILatency{API: d})
	}
	return &s
}

// labelsText lists the labels of f: their values where the program knows them, else what bounds them.
func labelsText(f *family) (text string, faults []string) {
	fixed := f.samples
	var parts []string
	for i, label := range f.labels {
		var values []string
		for _, s := range fixed {
			if v := "`" + s.labels[i] + "`"; !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		open := openLabels[label]
		switch {
		case open != "":
			parts = append(parts, fmt.Sprintf("`%s`: %s", label, open))
		case len(values) > 0:
			parts = append(parts, fmt.Sprintf("`%s`: %s", label, strings.Join(values, ", ")))
		default:
			faults = append(faults, fmt.Sprintf("%s: nothing says what values the label %s can have", f.name, label))
		}
	}
	return strings.Join(parts, "; "), faults
}

// Names are those that Prometheus expects of their type, and each has a help text.
func TestMetricNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range specimen().families() {
		if seen[f.name] {
			t.Errorf("%s: there are two", f.name)
		}
		seen[f.name] = true
		counts := strings.HasSuffix(f.name, "_total")
		if (f.kind == prometheus.CounterValue) != counts {
			t.Errorf("%s is a %s", f.name, kindText(f.kind))
		}
		if f.kind == histogram && !strings.HasSuffix(f.name, "_seconds") {
			t.Errorf("%s: times are in seconds", f.name)
		}
		if !strings.HasSuffix(f.help, ".") {
			t.Errorf("%s: %q is no sentence", f.name, f.help)
		}
	}
}
