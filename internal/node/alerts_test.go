package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/ring"
)

const (
	alertsFile = "../../deploy/observability/alerts.yaml"
	// runbooks is what runbook_url is without the section.
	runbooks = limiter.DocsURL + "operate/troubleshooting.md#"
)

// alertRules is a rule file of Prometheus, as far as alerts.yaml may use it.
type alertRules struct {
	Groups []struct {
		Name  string  `yaml:"name"`
		Rules []alert `yaml:"rules"`
	} `yaml:"groups"`
}

type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// The metrics and labels of an alert are those of this program, and it says what to do.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile(alertsFile)
	do(t, err)
	for _, fault := range alertFaults(text) {
		t.Error(fault)
	}
}

// Each fault is found in a file that is otherwise right.
func TestAlertFaults(t *testing.T) {
	text, err := os.ReadFile(alertsFile)
	do(t, err)
	for _, c := range []struct{ old, new, want string }{
		{"sluice_ready == 0", "sluice_redy == 0", "SluiceNotReady: there is no metric sluice_redy"},
		{`source="overloaded"`, `source="full"`, `SluiceOverloaded: sluice_decisions_total has no source "full"`},
		{`source=~"share|`, `source=~"shares|`, `has no source "shares"`},
		{`{direction="given"}`, `{way="given"}`, `sluice_handoffs_total has no way`},
		{"!= 1021", "!= 1022", "there are 1021 partitions, not 1022"},
		{"md#sluicenotready", "md#sluiceready", "SluiceNotReady: leads to no section"},
	} {
		if !bytes.Contains(text, []byte(c.old)) {
			t.Fatalf("%s has no %q to spoil", alertsFile, c.old)
		}
		faults := alertFaults(bytes.Replace(text, []byte(c.old), []byte(c.new), 1))
		if !strings.Contains(strings.Join(faults, "\n"), c.want) {
			t.Errorf("%s: the faults found are %q", c.want, faults)
		}
	}
}

func alertFaults(text []byte) (faults []string) {
	var file alertRules
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		return []string{err.Error()}
	}
	if err := d.Decode(new(alertRules)); !errors.Is(err, io.EOF) {
		faults = append(faults, "more than one document")
	}
	seen := map[string]bool{}
	for _, g := range file.Groups {
		for _, a := range g.Rules {
			if seen[a.Alert] {
				faults = append(faults, a.Alert+": there are two")
			}
			seen[a.Alert] = true
			for _, fault := range a.faults() {
				faults = append(faults, a.Alert+": "+fault)
			}
		}
	}
	if len(seen) == 0 {
		faults = append(faults, "no alerts")
	}
	return faults
}

func (a *alert) faults() (faults []string) {
	if a.Expr == "" {
		faults = append(faults, "no expression")
	}
	if a.For != "" {
		if _, err := time.ParseDuration(a.For); err != nil {
			faults = append(faults, err.Error())
		}
	}
	if s := a.Labels["severity"]; s != "critical" && s != "warning" {
		faults = append(faults, "severity "+s)
	}
	if a.Annotations["summary"] == "" || a.Annotations["action"] == "" {
		faults = append(faults, "does not say what to do")
	}
	if a.Annotations["runbook_url"] != runbooks+strings.ToLower(a.Alert) {
		faults = append(faults, "leads to no section of its own")
	}
	return append(faults, selectorFaults(a.Expr)...)
}

var (
	// selectors are metrics of this program with their matchers, if any.
	selectors = regexp.MustCompile(`\b(sluice_\w+)(?:\{([^}]*)\})?`)
	matchers  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	wholes    = regexp.MustCompile(`sluice_partitions\) != (\d+)`)
)

func selectorFaults(expr string) (faults []string) {
	families := specimen().families()
	found := selectors.FindAllStringSubmatch(expr, -1)
	if len(found) == 0 && expr != "" {
		faults = append(faults, "names no metric of sluice")
	}
	for _, m := range found {
		i := slices.IndexFunc(families, func(f family) bool { return f.name == familyName(m[1], f.kind) })
		if i < 0 {
			faults = append(faults, "there is no metric "+m[1])
			continue
		}
		for _, match := range matchers.FindAllStringSubmatch(m[2], -1) {
			for value := range strings.SplitSeq(match[2], "|") {
				if why := families[i].lacks(match[1], value); why != "" {
					faults = append(faults, m[1]+" has no "+why)
				}
			}
		}
	}
	for _, m := range wholes.FindAllStringSubmatch(expr, -1) {
		if m[1] != strconv.Itoa(ring.DefaultPartitions) {
			faults = append(faults, fmt.Sprintf("there are %d partitions, not %s", ring.DefaultPartitions, m[1]))
		}
	}
	return faults
}

// lacks returns the label, or the value of it, that no sample of f has.
func (f *family) lacks(label, value string) string {
	if f.kind == histogram && label == "le" {
		return ""
	}
	if label == "job" || label == "instance" { // of the scrape
		return ""
	}
	i := slices.Index(f.labels, label)
	if i < 0 {
		return label
	}
	if openLabels[label] != "" || strings.HasPrefix(value, "$") {
		return ""
	}
	for _, s := range f.samples {
		if s.labels[i] == value {
			return ""
		}
	}
	return fmt.Sprintf("%s %q", label, value)
}

// familyName is the family that a series of a kind belongs to: histograms have three for each.
func familyName(series string, k prometheus.ValueType) string {
	if k == histogram {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if name, ok := strings.CutSuffix(series, suffix); ok {
				return name
			}
		}
	}
	return series
}
