package ruletest

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/yamldoc"
	"github.com/sluicecluster/sluice/rules"
	"go.yaml.in/yaml/v3"
)

// DefaultStart is when the clock of a test starts by default: midnight UTC of a Monday that is the first of a month.
var DefaultStart = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// maxRepeat bounds the checks of one step.
const maxRepeat = 1_000_000

type test struct {
	file  string
	line  int
	name  string
	steps []step
}

type step struct {
	domain     string
	descriptor []rules.Entry
	at         time.Time
	cost       int64
	verb       bucket.Verb
	repeat     int
	wants      []want
}

var verbs = []yamldoc.Named[bucket.Verb]{
	{Name: "check", Value: bucket.Check},
	{Name: "read", Value: bucket.Read},
	{Name: "charge", Value: bucket.Charge},
	{Name: "refund", Value: bucket.Refund},
	{Name: "reset", Value: bucket.Reset},
}

// defaults are what a file or a test says for the steps in it.
type defaults struct {
	domain     string
	descriptor []rules.Entry
	start      time.Time
}

func parse(files []rules.File) ([]test, error) {
	var out []test
	var errs []error
	for _, f := range files {
		root, r := yamldoc.Open(f.Data)
		p := &parser{Reader: r, file: f.Name}
		if root != nil {
			p.readFile(root)
		}
		for _, fault := range r.Errors() {
			if f.Outside != "" {
				errs = append(errs, f.Invalid())
				break
			}
			errs = append(errs, &rules.Error{File: f.Name, Line: fault.Line, Path: fault.Path, Reason: fault.Reason})
		}
		out = append(out, p.tests...)
	}
	return out, errors.Join(errs...)
}

type parser struct {
	*yamldoc.Reader
	file  string
	tests []test
}

func (p *parser) readFile(root *yaml.Node) {
	d := defaults{start: DefaultStart}
	var tests *yaml.Node
	for _, f := range p.Fields(root, "") {
		switch f.Name {
		case "tests":
			tests = f.Value
		default:
			if !p.readDefault(&d, f) {
				p.ErrorfAt(f.Line, "", "unknown key %s; a file takes tests, domain, descriptor and start", yamldoc.Quote(f.Name))
			}
		}
	}
	if tests == nil {
		p.Errorf(root, "tests", "is missing: a list of tests")
		return
	}
	for i, item := range p.Items(tests, "tests") {
		p.readTest(item, d, fmt.Sprintf("tests[%d]", i))
	}
}

// readDefault reads a key that files and tests share, and reports whether f is one.
func (p *parser) readDefault(d *defaults, f yamldoc.Field) bool {
	switch f.Name {
	case "domain":
		d.domain, _ = p.String(f.Value, f.Path)
	case "descriptor":
		d.descriptor = p.readDescriptor(f.Value, f.Path)
	case "start":
		d.start = p.readStart(f.Value, f.Path)
	default:
		return false
	}
	return true
}

func (p *parser) readTest(n *yaml.Node, d defaults, path string) {
	t := test{file: p.file, line: n.Line, name: path}
	var steps *yaml.Node
	for _, f := range p.Fields(n, path) {
		switch f.Name {
		case "name":
			t.name, _ = p.String(f.Value, f.Path)
		case "steps":
			steps = f.Value
		default:
			if !p.readDefault(&d, f) {
				p.ErrorfAt(f.Line, path, "unknown key %s; a test takes name, steps, domain, descriptor and start", yamldoc.Quote(f.Name))
			}
		}
	}
	if steps == nil {
		p.Errorf(n, path+".steps", "is missing: a list of checks and the decisions that they must get")
		return
	}
	now := d.start
	for i, item := range p.Items(steps, path+".steps") {
		s := p.readStep(item, d, now, fmt.Sprintf("%s.steps[%d]", path, i))
		now = s.at
		t.steps = append(t.steps, s)
	}
	p.tests = append(p.tests, t)
}

func (p *parser) readStep(n *yaml.Node, d defaults, now time.Time, path string) step {
	s := step{domain: d.domain, descriptor: d.descriptor, at: now, cost: 1, repeat: 1}
	for _, f := range p.Fields(n, path) {
		switch f.Name {
		case "domain":
			s.domain, _ = p.String(f.Value, f.Path)
		case "descriptor":
			s.descriptor = p.readDescriptor(f.Value, f.Path)
		case "at":
			s.at = p.readAt(f.Value, d.start, now, f.Path)
		case "cost":
			s.cost, _ = p.Int(f.Value, f.Path, 0, math.MaxInt64)
		case "verb":
			s.verb, _ = yamldoc.Enum(p.Reader, f.Value, f.Path, verbs)
		case "repeat":
			times, _ := p.Int(f.Value, f.Path, 1, maxRepeat)
			s.repeat = int(times)
		case "want":
			s.wants = p.readWants(f.Value, f.Path)
		default:
			p.ErrorfAt(f.Line, path, "unknown key %s; a step takes descriptor, domain, at, cost, verb, repeat and want", yamldoc.Quote(f.Name))
		}
	}
	if s.domain == "" {
		p.Errorf(n, path+".domain", "is missing: give it in the step, the test or the file")
	}
	if len(s.descriptor) == 0 {
		p.Errorf(n, path+".descriptor", "is missing: give it in the step, the test or the file")
	}
	return s
}

// readDescriptor reads a list of key=value and of mappings, or one mapping.
func (p *parser) readDescriptor(n *yaml.Node, path string) []rules.Entry {
	if n.Kind == yaml.MappingNode {
		return p.readEntries(nil, n, path)
	}
	var out []rules.Entry
	for i, item := range p.Items(n, path) {
		at := fmt.Sprintf("%s[%d]", path, i)
		if item.Kind == yaml.MappingNode {
			out = p.readEntries(out, item, at)
			continue
		}
		s, _ := p.String(item, at)
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			p.Errorf(item, at, "must be key=value or a mapping, not %s", yamldoc.Quote(s))
		}
		out = append(out, rules.Entry{Key: key, Value: value})
	}
	return out
}

func (p *parser) readEntries(out []rules.Entry, n *yaml.Node, path string) []rules.Entry {
	for _, f := range p.Fields(n, path) {
		value, _ := p.String(f.Value, f.Path)
		out = append(out, rules.Entry{Key: f.Name, Value: value})
	}
	return out
}

func (p *parser) readStart(n *yaml.Node, path string) time.Time {
	s, _ := p.String(n, path)
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		p.Errorf(n, path, "must be a time such as 2024-01-01T00:00:00Z, not %s", yamldoc.Quote(s))
		return DefaultStart
	}
	return t
}

// readAt reads a time, or a duration since start. Steps go forward.
func (p *parser) readAt(n *yaml.Node, start, now time.Time, path string) time.Time {
	s, _ := p.String(n, path)
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		d, derr := rules.ParseDuration(s)
		if derr != nil {
			p.Errorf(n, path, "must be a duration since start such as 90s, or a time such as 2024-01-01T00:00:00Z, not %s", yamldoc.Quote(s))
			return now
		}
		t = start.Add(d)
	}
	if t.Before(now) {
		p.Errorf(n, path, "is before the step above it, at %s", now.Format(time.RFC3339Nano))
		return now
	}
	return t
}

// want is one wanted value of a step.
type want struct {
	field string
	value any
	line  int
	// everyTime: every repetition of the step must have the value, not only the last.
	everyTime bool
}

// wantFields are the values that a step can want: bool, int64, time.Duration or string. A rule that no check matched has
// the name "".
var wantFields = map[string]func(answer) any{
	"allowed":     func(a answer) any { return a.Allowed },
	"soft":        func(a answer) any { return a.Soft },
	"shadow":      func(a answer) any { return a.shadowed },
	"elastic":     func(a answer) any { return a.elastic },
	"matched":     func(a answer) any { return a.rule != nil },
	"limit":       func(a answer) any { return a.Limit },
	"remaining":   func(a answer) any { return a.Remaining },
	"retry_after": func(a answer) any { return a.RetryAfter },
	"reset_after": func(a answer) any { return a.ResetAfter },
	"delay":       func(a answer) any { return a.Delay },
	"rule": func(a answer) any {
		if a.rule == nil {
			return ""
		}
		return a.rule.Name
	},
	"decided_by": func(a answer) any {
		if a.rule == nil || a.rule.Limits == nil {
			return ""
		}
		return a.rule.LimitName(int(a.Index))
	},
}

func (p *parser) readWants(n *yaml.Node, path string) []want {
	var out []want
	for _, f := range p.Fields(n, path) {
		get := wantFields[f.Name]
		if get == nil {
			p.ErrorfAt(f.Line, path, "unknown key %s; want takes allowed, soft, shadow, elastic, matched, limit, remaining, retry_after, reset_after, delay, rule and decided_by",
				yamldoc.Quote(f.Name))
			continue
		}
		w := want{field: f.Name, line: f.Line}
		switch get(answer{}).(type) {
		case bool:
			w.value, _ = p.Bool(f.Value, f.Path)
			w.everyTime = true
		case int64:
			w.value, _ = p.Int(f.Value, f.Path, 0, math.MaxInt64)
		case time.Duration:
			w.value = p.readDuration(f.Value, f.Path)
		case string:
			w.value, _ = p.String(f.Value, f.Path)
		}
		out = append(out, w)
	}
	return out
}

func (p *parser) readDuration(n *yaml.Node, path string) time.Duration {
	s, _ := p.String(n, path)
	if s == "never" {
		return bucket.Never
	}
	d, err := rules.ParseDuration(s)
	if err != nil {
		p.Errorf(n, path, "%s", err)
	}
	return d
}
