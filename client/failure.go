package sluice

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/client/limit"
)

const (
	// firstTimeout is the time of a call until a node has told its --check-timeout.
	firstTimeout = 3 * time.Second
	// margin is added to the nodes' --check-timeout and a round trip.
	margin = 300 * time.Millisecond
	// closedRetry is the RetryAfter of a denial by FailClosed: about when a node may answer again.
	closedRetry = time.Second
)

// setPatience sets the time of a call from what n has told and how far away it is.
func (c *Client) setPatience(n *node) {
	if told := c.checkTimeout.Load(); c.opts.Timeout == 0 && told > 0 {
		c.patience.Store(told + n.rtt.Load() + int64(margin))
	}
}

// noteCause remembers why a node could not be reached.
func (c *Client) noteCause(err error) { c.cause.Store(new(causeOf(err))) }

// causeOf returns gRPC's error for people.
func causeOf(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	text := st.Message()
	for _, nested := range []string{"latest balancer error: ", "last connection error: ", "connection error: desc = "} {
		if _, cause, found := strings.Cut(text, nested); found {
			text = strings.Trim(cause, `"`)
		}
	}
	text = strings.TrimPrefix(strings.ReplaceAll(text, `\"`, `"`), "transport: ")
	switch {
	case st.Code() == codes.Unauthenticated:
		return &Error{Code: limit.CodeUnauthenticated, Message: text}
	case st.Code() == codes.PermissionDenied:
		return &Error{Code: limit.CodeForbidden, Message: text}
	case st.Code() == codes.Unimplemented, strings.Contains(text, "HTTP/1"):
		text, _, _ = strings.Cut(text, ";")
		return fmt.Errorf("what listens there is not the gRPC API of a node, whose port is 7460 by default: %s", text)
	case strings.Contains(text, "error reading server preface"):
		return fmt.Errorf("what listens there does not speak gRPC, or wants TLS (WithTLS): %s", text)
	}
	return errors.New(text)
}

// isRejection reports whether no retry of the same credentials helps.
func isRejection(cause error) bool { return errors.Is(cause, ErrUnauthenticated) }

// unavailable returns an ErrUnavailable with its cause: last, or why no node was reached.
func (c *Client) unavailable(last error) error {
	if last == nil {
		if cause := c.cause.Load(); cause != nil {
			last = *cause
		}
	}
	if last == nil || last == errGaveUp {
		last = fmt.Errorf("not within %v, or an earlier deadline of the call", time.Duration(c.patience.Load()).Round(time.Millisecond))
	}
	return fmt.Errorf("%w at %s: %w", ErrUnavailable, c.target, last)
}

// policyFor returns the policy of q.
func (c *Client) policyFor(q *Check) FailurePolicy {
	p := q.OnFailure
	if p.Kind == limit.SourceUnknown {
		p = c.opts.Policy
	}
	if p.ByRule {
		switch c.rules.onFailureOf(q) {
		case onFailureOpen:
			return limit.FailOpen()
		case onFailureClosed:
			return limit.FailClosed()
		}
	}
	return p
}

// standIn applies the failure policy to a check or a read, since cause.
func (c *Client) standIn(ctx context.Context, q *Check, key counterKey, read bool, cause error) (d Decision) {
	p := c.policyFor(q)
	switch {
	case p.Limiter != nil:
		local := *q
		if local.Verb = limit.VerbCheck; read {
			local.Verb = limit.VerbRead
		}
		var err error
		if d, err = p.Limiter.Check(ctx, local); err != nil {
			d, cause = Decision{Verdict: limit.VerdictDenied, RetryAfter: closedRetry}, errors.Join(cause, err)
		}
	case p.Kind == limit.SourceFailOpen:
		d.Allowed = true
	case p.Kind == limit.SourceFailClosed:
		d.RetryAfter = closedRetry
	default:
		c.standInLocally(p.Share, key, q.Amount, read, &d)
	}
	if d.Source, d.Degraded = p.Kind, cause; d.Verdict == limit.VerdictUnknown {
		if d.Verdict = limit.VerdictDenied; d.Allowed {
			d.Verdict = limit.VerdictAllowed
		}
	}
	c.outage.began(c.log, &d)
	return d
}

// standInLocally admits a share of the counter's last known limit.
func (c *Client) standInLocally(share float64, key counterKey, amount int64, read bool, d *Decision) {
	h, ok := c.owners.Peek(key)
	switch {
	case !ok || h.period <= 0:
		d.Allowed = true
		return
	case h.limit == 0: // what is blocked stays blocked
		d.Verdict = limit.VerdictNever
		return
	}
	per, burst := rate.Limit(share*float64(h.limit)/h.period.Seconds()), max(1, int(share*float64(h.limit)))
	l, ok := c.locals.Get(key)
	if !ok {
		l = rate.NewLimiter(per, burst)
		if old, found, _ := c.locals.PeekOrAdd(key, l); found {
			l = old
		}
	} else if l.Limit() != per || l.Burst() != burst {
		l.SetLimit(per)
		l.SetBurst(burst)
	}
	d.Counted, d.Limit, d.Count, d.Period = true, int64(burst), int64(burst), h.period
	now := time.Now()
	if amount > int64(burst) {
		d.Verdict = limit.VerdictNever
	} else if r := l.ReserveN(now, int(amount)); r.DelayFrom(now) > 0 || read {
		d.RetryAfter = r.DelayFrom(now)
		d.Allowed = d.RetryAfter == 0
		r.CancelAt(now)
	} else {
		d.Allowed = true
	}
	d.Remaining = max(0, int64(l.TokensAt(now)))
}

// standInAll applies the failure policy to an atomic batch: it reads first and spends only if all are allowed.
func (c *Client) standInAll(ctx context.Context, checks []Check, calls []*call, decisions []Decision, cause error) {
	all := true
	for _, reading := range []bool{true, false} {
		for i := range checks {
			decisions[i] = c.standIn(ctx, &checks[i], calls[i].key, reading || checks[i].Verb == limit.VerbRead, cause)
			all = all && decisions[i].Allowed
		}
		if !all {
			break
		}
	}
	for i := range decisions {
		if d := &decisions[i]; !all && d.Allowed {
			d.Allowed, d.Verdict = false, limit.VerdictDeniedByOthers
		}
	}
}

// log returns the client's logger.
func (c *Client) log() *slog.Logger {
	if c.opts.Logger != nil {
		return c.opts.Logger
	}
	return slog.Default()
}

// idle is how long no failure policy must have decided before an outage has ended.
const idle = time.Second

// outage logs when failure policies begin to decide, and when nodes decide again.
type outage struct {
	on atomic.Bool
	mu struct {
		sync.Mutex
		since, last time.Time
		checks      uint64
	}
}

func (o *outage) began(log func() *slog.Logger, d *Decision) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.last = time.Now()
	o.mu.checks++
	if o.on.CompareAndSwap(false, true) {
		o.mu.since, o.mu.checks = o.mu.last, 1
		log().Warn("sluice: no node answers; the failure policy decides", "policy", d.Source.String(), "allowed", d.Allowed, "cause", d.Degraded)
	}
}

// answered notes that a node has decided.
func (o *outage) answered(log func() *slog.Logger) {
	if !o.on.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.mu.last) >= idle && o.on.CompareAndSwap(true, false) {
		log().Info("sluice: nodes answer again", "after", o.mu.last.Sub(o.mu.since).Round(time.Millisecond), "decided_by_policy", o.mu.checks)
	}
}

// maxShapes bounds what is remembered of rules.
const maxShapes = 4096

// onFailure is what a rule says to do when no owner answers: a number of sluice.v1.OnFailure, stricter ones higher.
type onFailure uint8

const (
	onFailureOpen   onFailure = 2
	onFailureClosed onFailure = 3
)

// shape is what is known of the rule of a domain and the keys of a descriptor, whatever the values.
type shape struct {
	rule      string
	onFailure onFailure
	warned    bool // no rule matches, and the log has it
}

// shapes remembers what rules say, for checks of values that were never asked.
type shapes struct {
	known *lru.Cache[uint64, shape]
	any   atomic.Bool // some rule says what to do on failure
}

// of returns the hash of q's domain and keys.
func (s *shapes) of(q *Check) uint64 {
	var h maphash.Hash
	h.SetSeed(seeds[0])
	h.WriteString(q.Domain)
	for i := range q.Descriptor {
		h.WriteByte(0)
		h.WriteString(q.Descriptor[i].Key)
	}
	return h.Sum64()
}

// learn remembers the on_failure of the rule that decided q. Where rules differ by value, the strictest counts.
func (s *shapes) learn(q *Check, d *Decision, says onFailure) {
	if d.Rule == "" || says == 0 && !s.any.Load() {
		return
	}
	s.any.Store(true)
	k := s.of(q)
	if old, ok := s.known.Get(k); ok && (old.rule == d.Rule && old.onFailure == says || old.rule != d.Rule && old.onFailure >= says) {
		return
	}
	s.known.Add(k, shape{rule: d.Rule, onFailure: says})
}

func (s *shapes) onFailureOf(q *Check) onFailure {
	known, _ := s.known.Get(s.of(q))
	return known.onFailure
}

// warn logs once that no rule matches q.
func (s *shapes) warn(q *Check, d *Decision, log func() *slog.Logger) {
	k := s.of(q)
	if old, ok := s.known.Get(k); ok && old.warned {
		return
	}
	s.known.Add(k, shape{warned: true})
	log().Warn("sluice: no rule matches, so nothing limits these checks", "domain", q.Domain, "keys", keysOf(q), "allowed", d.Allowed)
}

// keysOf returns the keys of q's descriptor: values may be secret.
func keysOf(q *Check) string {
	keys := make([]string, len(q.Descriptor))
	for i := range keys {
		keys[i] = q.Descriptor[i].Key
	}
	return strings.Join(keys, " ")
}
