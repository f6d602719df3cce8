package limiter

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/test/onenode"
)

// script is a Limiter on one table that plays scripts: a line is a call, "=>", and what it answers. The calls are
//
//	user=x path=/y *3 read @mail [5/1h] | watched=w    checks; * is the cost, @ the domain, and [] are limits of the check
//	whole: CHECKS                                      all or nothing; "one: " are of one request
//	key CALLER K: CHECKS                               have an idempotency key; the caller may be missing
//	reserve R 40 least=20 ttl=1m key=k lease hold user=x team=y
//	spend R 5, extend R 5 1m, settle R 5
//	after 10s
//	pool                                               what priority high finds left of the pool spare
//
// A check is answered with its verdict, what is left of the limit, and the time to a retry.
type script struct {
	*Limiter
	t      testing.TB
	node   *onenode.Node
	domain string
	// fails are verbs that the owner of the last key of a call does not answer.
	fails map[bucket.Verb]bool
	made  map[string]Reservation
}

func newScript(t testing.TB, file string, change ...func(*Config)) *script {
	t.Helper()
	s := &script{t: t, node: newNode(t), fails: map[bucket.Verb]bool{}, made: map[string]Reservation{}}
	s.Limiter = newService(t, decideFunc(func(ctx context.Context, q *check.Batch) {
		s.node.Decide(ctx, q)
		if last := len(q.Requests) - 1; s.fails[q.Requests[last].Verb] {
			q.Answers[last] = check.Answer{Err: check.ErrNoOwner}
		}
	}), append([]func(*Config){func(c *Config) {
		c.Clock = func() time.Duration { return time.Duration(s.node.Now.Load() - start) }
	}}, change...)...)
	s.SetRules(parse(t, file))
	s.domain = s.Rules().Domains()[0]
	return s
}

// play plays a script with rules of its own.
func play(t testing.TB, file, text string) *script {
	t.Helper()
	s := newScript(t, file)
	s.play(text)
	return s
}

func (s *script) play(text string) {
	s.t.Helper()
	var got, want strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		call, answer, _ := strings.Cut(line, " =>")
		fmt.Fprintf(&want, "%s =>%s\n", call, answer)
		fmt.Fprintf(&got, "%s => %s\n", call, s.do(call))
	}
	if g, w := strings.ReplaceAll(got.String(), "=> \n", "=>\n"), want.String(); g != w {
		s.t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// do makes one call.
func (s *script) do(call string) string {
	s.t.Helper()
	ctx, words := s.t.Context(), strings.Fields(call)
	id := ""
	if len(words) > 1 {
		id = s.made[words[1]].ID
	}
	switch words[0] {
	case "after":
		s.node.Now.Add(int64(s.duration(words[1])))
		return ""
	case "pool":
		pool := s.Rules().Pool(s.domain, "spare")
		q := bucket.Request{Key: s.config.Hasher.Key(pool.AppendKey([]byte{spacePool})), Limits: pool.Limits(0), Verb: bucket.Read, Cost: 1}
		return fmt.Sprint(s.node.Table.Do(s.node.Now.Load(), &q).Remaining)
	case "reserve":
		return s.reserve(words[1], words[2:])
	case "spend":
		x, err := s.Spend(ctx, id, s.number(words[2]))
		return told(err, "allowed %v, %d left", x.Allowed, x.Left)
	case "extend":
		var ttl time.Duration
		if len(words) > 3 {
			ttl = s.duration(words[3])
		}
		x, err := s.Extend(ctx, id, s.number(words[2]), ttl)
		return told(err, "allowed %v, %d for %s%s", x.Allowed, x.Units, short(x.ExpiresAfter), retry(x.RetryAfter))
	case "settle":
		x, err := s.Settle(ctx, id, s.number(words[2]))
		late := map[bool]string{true: ", late"}[x.Late] + map[bool]string{true: ", repeated"}[x.Repeated]
		return told(err, "%d charged, %d returned%s", x.Charged, x.Returned, late)
	}
	prefix := scriptPrefix.FindString(call)
	b := s.batch(strings.TrimPrefix(call, prefix))
	switch words = strings.Fields(strings.TrimSuffix(prefix, ": ")); {
	case prefix == "":
	case words[0] == "key":
		b.IdempotencyKey, b.Caller = words[len(words)-1], strings.Join(words[1:len(words)-1], "")
	default:
		b.AllOrNothing, b.OneRequest = words[0] == "whole", words[0] == "one"
	}
	if err := s.Check(ctx, b); err != nil {
		return told(err, "")
	}
	return answers(b.Results)
}

var scriptPrefix = regexp.MustCompile(`^(whole|one|key [^:]*): `)

// batch makes a batch of checks that the test's end releases.
func (s *script) batch(checks string) *Batch {
	b := batch(s.t)
	for one := range strings.SplitSeq(checks, " | ") {
		s.add(b, one)
	}
	return b
}

var scriptWord = regexp.MustCompile(`\[[^\]]*\]|\S+`)

// add adds a check.
func (s *script) add(b *Batch, text string) *Check {
	c := b.Add()
	c.Domain = s.domain
	for _, w := range scriptWord.FindAllString(text, -1) {
		key, value, isEntry := strings.Cut(w, "=")
		switch {
		case w[0] == '[':
			set := parse(s.t, "domain: d\ndescriptors: [{key: k, limits: "+w+"}]")
			c.Limits = append(c.Limits, set.Rules()[0].Limits.List()...)
		case w[0] == '*':
			c.Cost = s.number(w[1:])
		case w[0] == '@':
			c.Domain = w[1:]
		case isEntry:
			entry(key, value)(c)
		case w == "drain":
			c.Drain = true
		case w == "nodelay":
			c.NoDelay = true
		default:
			if err := c.Verb.UnmarshalText([]byte(w)); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return c
}

func (s *script) reserve(name string, words []string) string {
	b := NewBatch()
	defer b.Release()
	var r ReserveRequest
	for _, w := range words {
		key, value, isPair := strings.Cut(w, "=")
		switch {
		case w == "lease":
			r.Lease = true
		case w == "hold":
			r.Hold = true
		case key == "least":
			r.Least = s.number(value)
		case key == "ttl":
			r.TTL = s.duration(value)
		case key == "key":
			b.IdempotencyKey = value
		case isPair:
			s.add(b, w)
		default:
			r.Units = s.number(w)
		}
	}
	x, err := s.Reserve(s.t.Context(), b, r)
	if err != nil {
		return told(err, "")
	}
	s.made[name] = x
	if x.ID == "" {
		return answers(b.Results)
	}
	return fmt.Sprintf("%d for %s", x.Units, short(x.ExpiresAfter))
}

func (s *script) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// told is the code and the field of an error, or else what is formatted.
func told(err error, format string, args ...any) string {
	if e, ok := err.(*Error); ok {
		return strings.TrimSpace(e.Code.String() + " " + e.Field)
	}
	return fmt.Sprintf(format, args...)
}

// retry is when to ask again.
func retry(d time.Duration) string {
	switch d {
	case 0:
		return ""
	case bucket.Never:
		return ", never"
	}
	return ", in " + short(d)
}

func short(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// answers are results, one after the other.
func answers(list []Result) string {
	var out []string
	for i := range list {
		r := &list[i]
		switch {
		case r.Err != nil:
			out = append(out, told(r.Err, ""))
		case r.Source == check.Unmatched:
			out = append(out, "unmatched "+r.Verdict().String())
		default:
			again := retry(r.RetryAfter)
			if r.Verdict() == DeniedNever {
				again = ""
			}
			out = append(out, fmt.Sprintf("%v %d/%d%s", r.Verdict(), r.Remaining, r.Limit, again))
		}
	}
	return strings.Join(out, " | ")
}
