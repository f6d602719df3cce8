// Package ruletest runs test cases for rule files, written in YAML: which descriptor is checked when, at what cost, and
// the decision that it must get. Each test has a table of its own and a clock that only its steps move, so a test over a
// year takes no time. It is pure: bytes and rules in, results out, no goroutine.
package ruletest

import (
	"fmt"
	"strconv"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// Result is the outcome of one test.
type Result struct {
	File string
	// Line is where the test begins.
	Line int
	Name string
	// Steps is the number of checks, with repetitions.
	Steps int
	// Failures is empty if the test passed. A test ends at its first step that fails, because later ones depend on it.
	Failures []Failure
}

// Passed reports whether every decision was as wanted.
func (r *Result) Passed() bool { return len(r.Failures) == 0 }

// Failure is one value that was not as wanted.
type Failure struct {
	File string
	// Line is that of the wanted value.
	Line int
	// Field is its key, for example "remaining".
	Field     string
	Got, Want string
	// Repeat is the number of the step's repetition, from 1; 0 if the step is not repeated.
	Repeat int
}

func (f Failure) String() string {
	at := ""
	if f.Repeat > 0 {
		at = fmt.Sprintf(" (time %d)", f.Repeat)
	}
	return fmt.Sprintf("%s:%d: %s%s: got %s, want %s", f.File, f.Line, f.Field, at, f.Got, f.Want)
}

// Run runs the tests in files against set, in their order. The error joins one *rules.Error per error in the files; no
// test is run then.
func Run(set *rules.Set, files []rules.File) ([]Result, error) {
	tests, err := parse(files)
	if err != nil {
		return nil, err
	}
	out := make([]Result, len(tests))
	for i := range tests {
		if out[i], err = tests[i].run(set); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *test) run(set *rules.Set) (Result, error) {
	res := Result{File: t.file, Line: t.line, Name: t.name}
	table, err := bucket.NewTable(bucket.Config{Shards: 1, MaxEntries: 1 << 20})
	if err != nil {
		return res, fmt.Errorf("table for %s:%d: %w", t.file, t.line, err)
	}
	c := counters{table: table, keys: make(map[string]bucket.Key)}
	for i := range t.steps {
		s := &t.steps[i]
		for n := range s.repeat {
			res.Steps++
			a := c.answer(set, s)
			last := n == s.repeat-1
			for _, w := range s.wants {
				if got := wantFields[w.field](a); got != w.value && (w.everyTime || last) {
					f := Failure{File: t.file, Line: w.line, Field: w.field, Got: show(got), Want: show(w.value)}
					if s.repeat > 1 {
						f.Repeat = n + 1
					}
					res.Failures = append(res.Failures, f)
				}
			}
			if len(res.Failures) > 0 {
				return res, nil
			}
		}
	}
	return res, nil
}

// counters is one test's table. Keys are numbered in order instead of hashed.
type counters struct {
	table *bucket.Table
	keys  map[string]bucket.Key
	buf   []byte
}

// answer is a node's decision on a step.
type answer struct {
	bucket.Decision
	rule *rules.Rule
	// shadowed: the limits deny, and the rule is in shadow mode.
	shadowed bool
	// elastic: the limits deny, and the rule's pool admits.
	elastic bool
}

func (c *counters) answer(set *rules.Set, s *step) answer {
	rule, _ := set.Match(s.domain, s.descriptor)
	a := answer{rule: rule}
	if rule == nil || rule.Unlimited {
		if a.Allowed = rule != nil || set.Unmatched(s.domain) != rules.UnmatchedDeny; !a.Allowed {
			a.RetryAfter = bucket.Never
		}
		return a
	}
	c.buf = rule.AppendKey(append(c.buf[:0], 'r'), s.domain, s.descriptor)
	a.Decision = c.table.Do(s.at.UnixNano(), &bucket.Request{Key: c.key(), Limits: rule.Limits, Cost: s.cost, Verb: s.verb})
	if rule.Elastic != nil && !a.Allowed {
		c.askPool(rule, s, &a)
	}
	if rule.Shadow && !a.Allowed {
		a.Allowed, a.shadowed = true, true
	}
	return a
}

// key returns the key of the counter that c.buf names.
func (c *counters) key() bucket.Key {
	key, ok := c.keys[string(c.buf)]
	if !ok {
		key = bucket.Key{Hi: uint64(len(c.keys) + 1), Lo: uint64(len(c.keys) + 1)}
		c.keys[string(c.buf)] = key
	}
	return key
}

// askPool checks the rule's pool, at the load that counts while none is reported, after the limits denied in a.
func (c *counters) askPool(rule *rules.Rule, s *step, a *answer) {
	pool := rule.Elastic.Pool
	verb := s.verb
	if rule.Shadow {
		verb = bucket.Read
	}
	step := rules.StepOf(pool.Unreported)
	c.buf = pool.AppendKey(append(c.buf[:0], 'p'))
	d := c.table.Do(s.at.UnixNano(), &bucket.Request{
		Key: c.key(), Limits: pool.Limits(step), Cost: s.cost, Verb: verb,
		Reserve: pool.Reserve(rule.Elastic.Priority(s.descriptor), step),
	})
	if d.Allowed {
		a.Allowed, a.elastic, a.RetryAfter = true, true, 0
		return
	}
	a.RetryAfter = min(a.RetryAfter, d.RetryAfter)
}

// show prints a value as test files spell it, with names in quotes.
func show(v any) string {
	if v == any(bucket.Never) {
		return "never"
	}
	if s, ok := v.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(v)
}
