package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const observability = "../../deploy/observability/"

// dashboard is one of Grafana, as far as it can be wrong.
type dashboard struct {
	Title      string  `json:"title"`
	UID        string  `json:"uid"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name       string      `json:"name"`
			Type       string      `json:"type"`
			Definition string      `json:"definition"`
			Datasource *datasource `json:"datasource"`
		} `json:"list"`
	} `json:"templating"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Datasource *datasource `json:"datasource"`
	Targets    []struct {
		RefID      string      `json:"refId"`
		Expr       string      `json:"expr"`
		Datasource *datasource `json:"datasource"`
	} `json:"targets"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(observability + "grafana/dashboards/sluice.json")
	do(t, err)
	do(t, json.Unmarshal(text, &d))
	return d
}

// any data source can be chosen.
func (d *datasource) chosen() bool {
	return d != nil && d.Type == "prometheus" && d.UID == "${datasource}"
}

// TestDashboardPage: the page about the dashboard has its rows, in order.
func TestDashboardPage(t *testing.T) {
	page, err := os.ReadFile(observability + "README.md")
	do(t, err)
	_, table, _ := strings.Cut(string(page), "| Row | Content |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var rows []string
	for line := range strings.Lines(table) {
		rows = append(rows, strings.TrimSpace(strings.Split(line, "|")[1]))
	}
	if !slices.Equal(rows, dashboardRows) {
		t.Errorf("%q, want %q", rows, dashboardRows)
	}
}

// The dashboard answers its rows in order, by metrics and labels that the program has.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	for _, fault := range d.faults() {
		t.Error(fault)
	}
}

var (
	dashboardRows = []string{"Health", "Correctness", "Latency and load", "Limits", "Partitions and replication", "Rejected clients", "Regions"}
	variables     = regexp.MustCompile(`\$\{?(\w+)`)
	// foreign are metrics of the runtime and the process, by the libraries that make them.
	foreign = regexp.MustCompile(`\b(process_cpu_seconds_total|process_resident_memory_bytes|go_goroutines)\b`)
)

func (d *dashboard) faults() (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	known := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		known = append(known, v.Name)
		switch {
		case v.Type == "datasource":
		case !v.Datasource.chosen():
			fault("variable %s: a data source of its own", v.Name)
		default:
			for _, f := range selectorFaults(v.Definition) {
				fault("variable %s: %s", v.Name, f)
			}
		}
	}
	var rows []string
	ids := map[int]bool{}
	for i := range d.Panels {
		p := &d.Panels[i]
		if ids[p.ID] {
			fault("%s: id %d twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for j := range d.Panels[:i] {
			a, b := &d.Panels[j].GridPos, &p.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				fault("%s: overlaps %s", p.Title, d.Panels[j].Title)
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if !p.Datasource.chosen() {
			fault("%s: a data source of its own", p.Title)
		}
		if len(p.Targets) == 0 {
			fault("%s: asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			if !q.Datasource.chosen() {
				fault("%s %s: a data source of its own", p.Title, q.RefID)
			}
			for _, v := range variables.FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(known, v[1]) {
					fault("%s: %s is a variable that there is not", p.Title, v[1])
				}
			}
			if foreign.MatchString(q.Expr) && !strings.Contains(q.Expr, "sluice_") {
				continue
			}
			if !strings.Contains(q.Expr, "sluice_") {
				fault("%s: %s is no metric of sluice", p.Title, q.Expr)
			}
			for _, f := range selectorFaults(q.Expr) {
				fault("%s: %s", p.Title, f)
			}
		}
	}
	if !slices.Equal(rows, dashboardRows) {
		fault("the rows are %q, want %q", rows, dashboardRows)
	}
	return faults
}

// Every alert leads to a section of docs/operate/troubleshooting.md, and every such section is about one.
func TestAlertRunbooks(t *testing.T) {
	text, err := os.ReadFile("../../docs/operate/troubleshooting.md")
	do(t, err)
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		sections = append(sections, m[1])
	}
	alerts := alertNames(t)
	slices.Sort(sections)
	slices.Sort(alerts)
	if !slices.Equal(sections, alerts) {
		t.Errorf("sections %q\nalerts   %q", sections, alerts)
	}
}

func alertNames(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(alertsFile)
	do(t, err)
	var file alertRules
	do(t, yaml.Unmarshal(text, &file))
	for _, g := range file.Groups {
		for _, a := range g.Rules {
			names = append(names, a.Alert)
		}
	}
	return names
}

// Every alert has a test in which it fires, and is in none by another name.
func TestAlertsAreTested(t *testing.T) {
	text, err := os.ReadFile(observability + "alerts_test.yaml")
	do(t, err)
	var file struct {
		Tests []struct {
			Name  string `yaml:"name"`
			Exprs []struct {
				Expr    string `yaml:"expr"`
				Samples []struct {
					Labels string `yaml:"labels"`
				} `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	do(t, yaml.Unmarshal(text, &file))
	fires := map[string]bool{}
	for _, test := range file.Tests {
		for _, e := range test.Exprs {
			for _, s := range e.Samples {
				if !strings.Contains(s.Labels, `alertname="`+test.Name+`"`) {
					t.Errorf("%s fires in the test of %s", s.Labels, test.Name)
				}
				fires[test.Name] = true
			}
		}
	}
	for _, name := range alertNames(t) {
		if !fires[name] {
			t.Errorf("%s fires in no test", name)
		}
		delete(fires, name)
	}
	for name := range fires {
		t.Errorf("%s is no alert", name)
	}
}

// promtool runs Prometheus's own tool. It is not everywhere; SLUICE_PROMTOOL=required wants it.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("SLUICE_PROMTOOL") == "required" {
			t.Fatal(err)
		}
		t.Skip("there is no promtool")
	}
	cmd := exec.CommandContext(t.Context(), tool, args...)
	cmd.Dir = observability
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestPromtool(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", "alerts.yaml"},
		{"test", "rules", "alerts_test.yaml"},
		{"check", "config", "prometheus.yml"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) { promtool(t, args...) })
	}
}

// Prometheus can read every query of the dashboard, with something in the place of Grafana's variables.
func TestDashboardByPromtool(t *testing.T) {
	d := readDashboard(t)
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			expr := strings.ReplaceAll(q.Expr, "$__rate_interval", "1m")
			rules = append(rules, rule{fmt.Sprintf("panel:%d_%s", p.ID, q.RefID), variables.ReplaceAllString(expr, "x")})
		}
	}
	if len(rules) < 50 {
		t.Fatalf("%d queries", len(rules))
	}
	var text bytes.Buffer
	do(t, yaml.NewEncoder(&text).Encode(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}}))
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	do(t, os.WriteFile(file, text.Bytes(), 0o600))
	promtool(t, "check", "rules", file)
}

// The files that Grafana is provisioned with hang together.
func TestProvisioning(t *testing.T) {
	read := func(name, list string) (first map[string]any) {
		t.Helper()
		text, err := os.ReadFile(observability + "grafana/provisioning/" + name)
		do(t, err)
		var file map[string]any
		if err := yaml.Unmarshal(text, &file); err != nil {
			t.Fatal(name, err)
		}
		entries, _ := file[list].([]any)
		if len(file) != 2 || file["apiVersion"] != 1 || len(entries) != 1 {
			t.Fatalf("%s: %v", name, file)
		}
		return entries[0].(map[string]any)
	}
	if source := read("datasources/prometheus.yaml", "datasources"); source["type"] != "prometheus" || source["url"] == "" {
		t.Errorf("%v", source)
	}
	readme, err := os.ReadFile(observability + "README.md")
	do(t, err)
	boards := read("dashboards/sluice.yaml", "providers")
	if path := boards["options"].(map[string]any)["path"]; boards["type"] != "file" || !strings.Contains(string(readme), fmt.Sprintf("`%s`", path)) {
		t.Errorf("%v", boards)
	}
}
