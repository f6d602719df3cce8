package ruletest

import (
	"math"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
	"github.com/sluice-project/sluice/rules"
)

// want is one wanted value of a step.
type want struct {
	field, text string
	line        int
	// everyTime: all repetitions of the step must answer it, not only the last.
	everyTime bool
	compare   func(answer) (got string, ok bool)
}

// wantBools are the wanted values that are true or false.
var wantBools = map[string]func(answer) bool{
	"allowed": func(a answer) bool { return a.Allowed },
	"soft":    func(a answer) bool { return a.Soft },
	"shadow":  func(a answer) bool { return a.shadowed },
	"elastic": func(a answer) bool { return a.elastic },
	"matched": func(a answer) bool { return a.rule != nil },
}

// wantInts are whole numbers.
var wantInts = map[string]func(answer) int64{
	"limit":     func(a answer) int64 { return a.Limit },
	"remaining": func(a answer) int64 { return a.Remaining },
}

// wantTimes are durations, of which retry_after may be never.
var wantTimes = map[string]func(answer) time.Duration{
	"retry_after": func(a answer) time.Duration { return a.RetryAfter },
	"reset_after": func(a answer) time.Duration { return a.ResetAfter },
	"delay":       func(a answer) time.Duration { return a.Delay },
}

// wantNames are names: of the rule, empty if none matches, and of the limit
// that decided.
var wantNames = map[string]func(answer) string{
	"rule": func(a answer) string {
		if a.rule == nil {
			return ""
		}
		return a.rule.Name
	},
	"decided_by": func(a answer) string {
		if a.rule == nil || a.rule.Limits == nil {
			return ""
		}
		return a.rule.LimitName(int(a.Index))
	},
}

func (p *parser) readWants(n *yaml.Node, path string) []want {
	var out []want
	for _, f := range p.Fields(n, path) {
		w := want{field: f.Name, line: f.Line}
		at := path + "." + f.Name
		if get, ok := wantBools[f.Name]; ok {
			v, _ := p.Bool(f.Value, at)
			w.text, w.everyTime = strconv.FormatBool(v), true
			w.compare = func(a answer) (string, bool) { g := get(a); return strconv.FormatBool(g), g == v }
		} else if get, ok := wantInts[f.Name]; ok {
			v, _ := p.Int(f.Value, at, 0, math.MaxInt64)
			w.text = strconv.FormatInt(v, 10)
			w.compare = func(a answer) (string, bool) { g := get(a); return strconv.FormatInt(g, 10), g == v }
		} else if get, ok := wantTimes[f.Name]; ok {
			v := p.readDuration(f.Value, at)
			w.text = show(v)
			w.compare = func(a answer) (string, bool) { g := get(a); return show(g), g == v }
		} else if get, ok := wantNames[f.Name]; ok {
			v, _ := p.String(f.Value, at)
			w.text = strconv.Quote(v)
			w.compare = func(a answer) (string, bool) { g := get(a); return strconv.Quote(g), g == v }
		} else {
			p.FaultAt(f.Line, path, "unknown key %s; want takes allowed, soft, shadow, elastic, matched, limit, remaining, retry_after, reset_after, delay, rule and decided_by",
				yamldoc.Quote(f.Name))
			continue
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
		p.Fault(n, path, "%s", err)
	}
	return d
}
