// Package access authenticates callers by a token or a certificate, and authorizes them by the ACL of --callers (a Policy).
// Every API calls it first:
//
//	pass, err := guard.Call(ctx, limiter.GRPCAPI)            // gRPC: Authorization metadata, else a verified certificate
//	pass, err := guard.Request(r, limiter.HTTPAPI)           // HTTP: the same of a request
//	pass, err := guard.Proxied(r, limiter.ForwardAuthAPI)    // forward auth: Authorization is the proxy's client's
//
// An error is an *limiter.Error of code Unauthenticated, to be returned at once. A Pass holds the caller's permissions for
// one call; long-lived streams keep the Identity and come Again with each request or batch of events:
//
//	err := pass.Restrict(batch)                        // checks: errors in those that are not granted
//	err := pass.May(access.Read, domain)               // a verb in a domain; "" is all domains
//	err := pass.MayUse(service.ReservationDomains, id) // a reservation, by its ID
//	err := pass.Operate(ctx, access.Admin, "")         // without an ACL for operators alone: see AsOperator
//
// Without a policy (no --callers) everything but Operate is open. A nil *Guard has no policy, for tests of APIs.
//
// It reads no files (internal/callerfile does), and never keeps, logs or returns a token. It starts no goroutine.
package access

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Guard authenticates the calls of a node's APIs. It is safe for concurrent use. A nil Guard has no policy.
type Guard struct {
	policy atomic.Pointer[Policy]
	log    *slog.Logger
	now    func() time.Time
	seen   [limiter.APIs][reasonCount]rejections
}

// NewGuard returns a Guard with policy; nil leaves the APIs open. now is the clock of its log.
func NewGuard(policy *Policy, log *slog.Logger, now func() time.Time) *Guard {
	g := &Guard{log: log, now: now}
	g.policy.Store(policy)
	return g
}

// SetPolicy puts policy into force for the next call, and on open streams for the next request.
func (g *Guard) SetPolicy(policy *Policy) { g.policy.Store(policy) }

// present returns the policy in force, nil for none. A call must load it once, so that one policy decides it.
func (g *Guard) present() *Policy {
	if g == nil {
		return nil
	}
	return g.policy.Load()
}

// Callers returns the names of all callers of the policy, some more than once.
func (g *Guard) Callers() (names []string) {
	p := g.present()
	if p == nil {
		return nil
	}
	for _, c := range p.tokens {
		names = append(names, c.Name)
	}
	for _, c := range p.names {
		names = append(names, c.Name)
	}
	return names
}

// Open reports whether there is no policy.
func (g *Guard) Open() bool { return g.present() == nil }

var errNoCredentials = &limiter.Error{
	Code:    limiter.Unauthenticated,
	Message: "this node requires authentication; send a token (Authorization: Bearer) or a certificate that it knows",
}

// errs are the errors of calls that are not authenticated.
var errs = [reasonCount]*limiter.Error{
	noCredentials: errNoCredentials, unknownCertificate: errNoCredentials,
	malformed:    {Code: limiter.Unauthenticated, Message: "the credentials are not one token as `sluice token` makes them"},
	unknownToken: {Code: limiter.Unauthenticated, Message: "this node does not know the token; it may have been revoked"},
}

// Call authenticates a gRPC call. The error, if any, is of code Unauthenticated.
func (g *Guard) Call(ctx context.Context, d limiter.API) (Pass, *limiter.Error) {
	policy := g.present()
	if policy == nil {
		return Pass{guard: g, api: d}, nil
	}
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	p, ok := g.begin(ctx, d, policy, values)
	if !ok {
		id := ofContext(ctx, values)
		return g.enter(d, policy, &id, values)
	}
	if from, ok := peer.FromContext(ctx); ok {
		p.addr = from.Addr
	}
	return p, nil
}

// Request authenticates an HTTP request. The error, if any, is of code Unauthenticated.
func (g *Guard) Request(r *http.Request, d limiter.API) (Pass, *limiter.Error) {
	policy := g.present()
	if policy == nil {
		return Pass{guard: g, api: d}, nil
	}
	values := r.Header["Authorization"]
	p, ok := g.begin(r.Context(), d, policy, values)
	if !ok {
		id := OfRequest(r)
		return g.enter(d, policy, &id, values)
	}
	p.remote = r.RemoteAddr
	return p, nil
}

// begin returns the Pass of a call with these values of Authorization if they are remembered, or if there are none and an
// operator calls.
func (g *Guard) begin(ctx context.Context, d limiter.API, policy *Policy, values []string) (p Pass, ok bool) {
	p = Pass{guard: g, api: d, policy: policy}
	p.caller = policy.quick.find(values)
	p.operator = len(values) == 0 && IsOperator(ctx)
	return p, p.caller != nil || p.operator
}

// Proxied authenticates a proxy's call about its client's request. The error, if any, is of code Unauthenticated.
func (g *Guard) Proxied(r *http.Request, d limiter.API) (Pass, *limiter.Error) {
	policy := g.present()
	if policy == nil {
		return Pass{guard: g, api: d}, nil
	}
	id := ofProxied(r)
	return g.enter(d, policy, &id, nil)
}

// Again is Enter for a caller that has a Pass of the same id: on a stream, for each request. It is cheap while the policy is
// the same.
func (g *Guard) Again(last Pass, id *Identity) (Pass, *limiter.Error) {
	if last.operator || g.present() == last.policy {
		return last, nil
	}
	return g.Enter(last.api, id)
}

// Enter authenticates the caller of id by the present policy. The error, if any, is of code Unauthenticated: the credentials
// are wrong, or missing and anonymous callers have no grants. It allocates nothing on success.
func (g *Guard) Enter(d limiter.API, id *Identity) (Pass, *limiter.Error) {
	policy := g.present()
	if policy == nil {
		return Pass{guard: g, api: d}, nil
	}
	return g.enter(d, policy, id, nil)
}

// enter is Enter by policy. It remembers the caller by values of Authorization, if it has authenticated by them.
func (g *Guard) enter(d limiter.API, policy *Policy, id *Identity, values []string) (Pass, *limiter.Error) {
	p := Pass{guard: g, api: d, addr: id.addr, remote: id.remote, policy: policy}
	var why reason
	if p.caller, why = policy.callerOf(id); p.caller == nil {
		g.rejected(&p, why, 0, "")
		return Pass{}, errs[why]
	}
	if id.shown == aToken {
		policy.quick.add(values, p.caller)
	}
	return p, nil
}

// Knows reports whether Enter would admit id. Nothing is counted.
func (g *Guard) Knows(id *Identity) bool {
	policy := g.present()
	if policy == nil {
		return true
	}
	caller, _ := policy.callerOf(id)
	return caller != nil
}

// callerOf returns the caller of id, or nil and the reason.
func (p *Policy) callerOf(id *Identity) (*Caller, reason) {
	switch {
	case id.shown == malformedToken:
		return nil, malformed
	case id.shown == aToken:
		return p.tokens[id.digest], unknownToken
	case id.certificate == nil:
		return p.anonymous, noCredentials
	}
	if c := p.Certificate(id.certificate); c != nil {
		return c, 0
	}
	return p.anonymous, unknownCertificate
}

// Pass has the permissions of an authenticated caller for one call. The zero value has all but Operate.
type Pass struct {
	guard  *Guard
	api    limiter.API
	addr   net.Addr
	remote string
	policy *Policy
	// caller is nil where there is no policy, and for operators.
	caller *Caller
	// operator: with a policy, an operator without credentials. See AsOperator.
	operator bool
}

// Open reports whether no grants are needed: there is no policy, or an operator calls.
func (p *Pass) Open() bool { return p.caller == nil }

// Name is the caller's in the file; "" without credentials, and without a policy.
func (p *Pass) Name() string {
	if p.caller == nil {
		return ""
	}
	return p.caller.Name
}

// Account is Caller.Account; "" without a policy.
func (p *Pass) Account() string {
	if p.caller == nil {
		return ""
	}
	return p.caller.Account()
}

// from is where the call came from.
func (p *Pass) from() string {
	if p.addr != nil {
		return p.addr.String()
	}
	return p.remote
}

// May returns why the caller does not have verb in domain, or nil; the domain "" is all of them. The error is of code
// Forbidden, or Unauthenticated for a caller without credentials. It is counted and logged.
func (p *Pass) May(verb Verb, domain string) *limiter.Error {
	if p.caller == nil || p.caller.May(verb, domain) {
		return nil
	}
	return p.reject(verb, domain)
}

// MayUse returns why the caller may not use a reservation, or nil: it must have Check in all of its domains. The error may be
// that of domains, which are Service.ReservationDomains.
func (p *Pass) MayUse(domains func(id string) ([]string, error), id string) error {
	list, err := domains(id)
	if err != nil {
		return err
	}
	for _, domain := range list {
		if rejected := p.May(Check, domain); rejected != nil {
			return rejected
		}
	}
	return nil
}

// Allows is May without counting, for parts of a response.
func (p *Pass) Allows(verb Verb, domain string) bool {
	return p.caller == nil || p.caller.May(verb, domain)
}

func (p *Pass) reject(verb Verb, domain string) *limiter.Error {
	in := fmt.Sprintf("%s in the domain %q", verb, clip(domain))
	if domain == "" {
		in = verb.String() + " in all domains"
	}
	if p.caller.Name == "" {
		p.guard.rejected(p, noCredentials, verb, domain)
		return &limiter.Error{Code: limiter.Unauthenticated, Message: "unauthenticated callers may not " + in + "; send a token or a certificate that this node knows"}
	}
	p.guard.rejected(p, notGranted, verb, domain)
	return &limiter.Error{Code: limiter.Forbidden, Message: "the caller " + p.caller.Name + " may not " + in}
}

// Operate returns why the caller of ctx may not make an operator's call, or nil. With a policy it is May; without one the
// call must be an operator's: see AsOperator. The error is counted and logged.
func (p *Pass) Operate(ctx context.Context, verb Verb, domain string) *limiter.Error {
	if p.caller != nil {
		return p.May(verb, domain)
	}
	if p.IsOperator(ctx) {
		return nil
	}
	if p.guard != nil {
		p.guard.rejected(p, notOperator, verb, domain)
	}
	return limiter.ErrNotOperator
}

// IsOperator reports whether the caller of ctx may see data for operators: an operator, and with a policy every caller, whose
// grants then decide.
func (p *Pass) IsOperator(ctx context.Context) bool {
	return p.caller != nil || p.operator || IsOperator(ctx)
}

// Restrict sets the Err of the checks of b that are not granted. If none is granted it returns the first error.
func (p *Pass) Restrict(b *limiter.Batch) *limiter.Error {
	if p.caller == nil {
		return nil
	}
	b.Account, b.Caller = p.caller.Account(), p.caller.Name
	var first, fault *limiter.Error
	var verb bucket.Verb
	var domain string
	all := len(b.Checks) > 0
	for i := range b.Checks {
		c := &b.Checks[i]
		if i == 0 || c.Verb != verb || c.Domain != domain {
			verb, domain = c.Verb, c.Domain
			fault = p.May(VerbOf(verb), domain)
		}
		if fault == nil {
			all = false
			continue
		}
		c.Err = fault
		if first == nil {
			first = fault
		}
	}
	if all {
		return first
	}
	return nil
}

// reason is why a call or a check was rejected.
type reason uint8

const (
	noCredentials reason = iota
	malformed
	unknownToken
	unknownCertificate
	notGranted
	// notOperator: without a policy, an operator's call by another caller.
	notOperator
	reasonCount
)

var reasonNames = [reasonCount]string{"no_credentials", "malformed", "unknown_token", "unknown_certificate", "not_granted", "not_operator"}

// rejections are those through one API for one reason.
type rejections struct {
	count atomic.Uint64
	// logged is the Unix time in ns of the last line about them, and told their number by then.
	logged atomic.Int64
	told   atomic.Uint64
}

// logEvery is the least time between log lines about rejections through one API for one reason.
const logEvery = time.Minute

// rejected counts a rejection, and logs it at most every logEvery. verb and domain are those of an authenticated caller.
func (g *Guard) rejected(p *Pass, why reason, verb Verb, domain string) {
	r := &g.seen[p.api][why]
	n := r.count.Add(1)
	now, last := g.now().UnixNano(), r.logged.Load()
	if last != 0 && now-last < int64(logEvery) && now >= last || !r.logged.CompareAndSwap(last, now) {
		return
	}
	facts := []any{"api", p.api.String(), "reason", reasonNames[why], "from", p.from()}
	if p.caller != nil || why == notOperator {
		facts = append(facts, "verb", verb.String(), "domain", clip(domain))
	}
	if name := p.Name(); name != "" {
		facts = append(facts, "caller", name)
	}
	g.log.Warn("rejected a caller", append(facts, "times", n-r.told.Swap(n))...)
}

// clip shortens a text of a caller for messages.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Rejected is the number of rejections through an API for a reason.
type Rejected struct {
	API, Reason string
	Count       uint64
}

// Stats returns the rejections since the Guard was made, with zeros.
func (g *Guard) Stats() []Rejected {
	list := make([]Rejected, 0, limiter.APIs*int(reasonCount))
	for d := range limiter.APIs {
		for r := range reasonCount {
			list = append(list, Rejected{limiter.API(d).String(), reasonNames[r], g.seen[d][r].count.Load()})
		}
	}
	return list
}
