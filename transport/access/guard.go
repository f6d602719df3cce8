// Package access says who may do what: it reads the file of --callers into a Policy, finds out by a token or a
// certificate who a caller is, and asks that caller's grants. Every API asks it before it does anything:
//
//	pass, err := guard.Call(ctx, limiter.GRPCAPI)            // gRPC: Authorization metadata, else a verified certificate
//	pass, err := guard.Request(r, limiter.HTTPAPI)           // HTTP: the same of a request
//	pass, err := guard.Proxied(r, limiter.ForwardAuthAPI)    // forward auth: Authorization is the proxy's client's
//
// An error is an *limiter.Error of code Unauthenticated, to be answered at once. A Pass then says what the
// caller may do, for one call; long-lived streams keep the Identity and come Again with each request, and so do
// streams of events with each batch of them:
//
//	err := pass.Restrict(batch)                        // checks: faults in those that are not granted
//	err := pass.May(access.Read, domain)               // one thing in one domain; "" is all domains
//	err := pass.Operate(ctx, access.Admin, "")         // what, without a file, operators alone may: see AsOperator
//
// Without a policy (no --callers) everything but Operate is open, and nothing is looked at. A nil *Guard is the
// same, for tests of APIs.
//
// It decides nothing about limits, reads no files (internal/callerfile does), and never keeps, logs or returns a
// token. It starts no goroutine.
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

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Guard stands at the APIs of a node. It is safe for concurrent use. A nil Guard has no policy.
type Guard struct {
	policy atomic.Pointer[Policy]
	log    *slog.Logger
	now    func() time.Time
	seen   [limiter.APIs][reasonCount]rejections
}

// NewGuard returns a Guard with policy, of which nil leaves the APIs open. now is read when something is rejected.
func NewGuard(policy *Policy, log *slog.Logger, now func() time.Time) *Guard {
	g := &Guard{log: log, now: now}
	g.policy.Store(policy)
	return g
}

// SetPolicy puts policy into force: for the next call, and on streams that are open for the next request.
func (g *Guard) SetPolicy(policy *Policy) { g.policy.Store(policy) }

// Open reports whether there is no policy.
func (g *Guard) Open() bool { return g == nil || g.policy.Load() == nil }

var (
	errNoCredentials = &limiter.Error{Code: limiter.Unauthenticated, Message: "this node wants to know who calls; send a token (Authorization: Bearer) or a certificate that it knows"}
	errMalformed     = &limiter.Error{Code: limiter.Unauthenticated, Message: "the credentials are not one token as `sluice token` makes them"}
	errUnknownToken  = &limiter.Error{Code: limiter.Unauthenticated, Message: "this node does not know the token; it may have been taken away"}
)

// Call lets a gRPC call in. The error, if any, is of code Unauthenticated.
func (g *Guard) Call(ctx context.Context, d limiter.API) (Pass, *limiter.Error) {
	if g.Open() {
		return Pass{guard: g, api: d}, nil
	}
	policy, values := g.policy.Load(), metadata.ValueFromIncomingContext(ctx, "authorization")
	if caller := policy.quick.find(values); caller != nil {
		p := Pass{guard: g, api: d, policy: policy, caller: caller}
		if from, ok := peer.FromContext(ctx); ok {
			p.addr = from.Addr
		}
		return p, nil
	}
	if len(values) == 0 && IsOperator(ctx) {
		return Pass{guard: g, api: d, policy: policy, operator: true}, nil
	}
	id := ofContext(ctx, values)
	return g.learn(d, policy, &id, values)
}

// Request lets an HTTP request in. The error, if any, is of code Unauthenticated.
func (g *Guard) Request(r *http.Request, d limiter.API) (Pass, *limiter.Error) {
	if g.Open() {
		return Pass{guard: g, api: d}, nil
	}
	policy, values := g.policy.Load(), r.Header["Authorization"]
	if caller := policy.quick.find(values); caller != nil {
		return Pass{guard: g, api: d, policy: policy, caller: caller, remote: r.RemoteAddr}, nil
	}
	if len(values) == 0 && IsOperator(r.Context()) {
		return Pass{guard: g, api: d, policy: policy, operator: true}, nil
	}
	id := OfRequest(r)
	return g.learn(d, policy, &id, values)
}

// Proxied lets in the request of a proxy that asks about its client's. The error, if any, is of code Unauthenticated.
func (g *Guard) Proxied(r *http.Request, d limiter.API) (Pass, *limiter.Error) {
	if g.Open() {
		return Pass{guard: g, api: d}, nil
	}
	id := OfProxied(r)
	return g.Enter(d, &id)
}

// Again is Enter for who was given last before with the same id: on a stream, for each request. It costs next to nothing
// while the policy is the same.
func (g *Guard) Again(last Pass, id *Identity) (Pass, *limiter.Error) {
	if g == nil || last.operator || g.policy.Load() == last.policy {
		return last, nil
	}
	return g.Enter(last.api, id)
}

// learn is Enter, and remembers the caller by the values of the header, if these are what let it in.
func (g *Guard) learn(d limiter.API, policy *Policy, id *Identity, values []string) (Pass, *limiter.Error) {
	p, err := g.enter(d, policy, id)
	if err == nil && id.shown == aToken {
		policy.quick.add(values, p.caller)
	}
	return p, err
}

// Enter lets in who has shown id, as things are now. The error, if any, is of code Unauthenticated: the credentials
// are wrong, or there are none and nobody may do anything without. It allocates nothing where it lets in.
func (g *Guard) Enter(d limiter.API, id *Identity) (Pass, *limiter.Error) {
	if g == nil {
		return Pass{}, nil
	}
	policy := g.policy.Load()
	if policy == nil {
		return Pass{guard: g, api: d}, nil
	}
	return g.enter(d, policy, id)
}

func (g *Guard) enter(d limiter.API, policy *Policy, id *Identity) (Pass, *limiter.Error) {
	p := Pass{guard: g, api: d, addr: id.addr, remote: id.remote, policy: policy}
	var why reason
	if p.caller, why = policy.whoIs(id); p.caller != nil {
		return p, nil
	}
	g.rejected(&p, why, 0, "")
	switch why {
	case malformed:
		return Pass{}, errMalformed
	case unknownToken:
		return Pass{}, errUnknownToken
	}
	return Pass{}, errNoCredentials
}

// Knows reports whether who has shown id would be let in. Nothing is counted.
func (g *Guard) Knows(id *Identity) bool {
	if g.Open() {
		return true
	}
	caller, _ := g.policy.Load().whoIs(id)
	return caller != nil
}

// whoIs returns who has shown id, or nil and why it is nobody.
func (p *Policy) whoIs(id *Identity) (*Caller, reason) {
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

// Pass says what a caller who was let in may do, for the length of one call. The zero value may do everything but
// Operate.
type Pass struct {
	guard  *Guard
	api    limiter.API
	addr   net.Addr
	remote string
	policy *Policy
	// caller is nil where there is no policy, and for operators.
	caller *Caller
	// operator: with a policy, an operator let in without credentials. See AsOperator.
	operator bool
}

// Open reports whether no grants are asked: there is no policy, or an operator calls.
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

// May says why the caller may not do verb in domain, or nil; the domain "" stands for all of them. The error is of
// code Forbidden, or Unauthenticated for a caller without credentials. It is counted and logged.
func (p *Pass) May(verb Verb, domain string) *limiter.Error {
	if p.caller == nil || p.caller.May(verb, domain) {
		return nil
	}
	return p.reject(verb, domain)
}

// Allows is May for what is only left out where it is not granted: nothing is counted.
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
		return &limiter.Error{Code: limiter.Unauthenticated, Message: "without a token or a certificate that this node knows, nobody may " + in}
	}
	p.guard.rejected(p, notGranted, verb, domain)
	return &limiter.Error{Code: limiter.Forbidden, Message: "the caller " + p.caller.Name + " may not " + in}
}

// Operate says why the caller of ctx may not do what operators do, or nil. With a policy the caller's grants say so, as in
// May. Without one the call must be an operator's: see AsOperator. It is counted and logged too.
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

// IsOperator reports whether the caller of ctx may see what is shown to operators by default: an operator, and with a
// policy everybody, as then the grants, which May asks, say all.
func (p *Pass) IsOperator(ctx context.Context) bool {
	return p.caller != nil || p.operator || IsOperator(ctx)
}

// Restrict makes faults of the checks of b that the caller may not do, so that they are answered with it and change
// nothing. The error, that of the first, is returned where all are such.
func (p *Pass) Restrict(b *limiter.Batch) *limiter.Error {
	if p.caller == nil {
		return nil
	}
	b.Account = p.caller.Account()
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
		c.Fault = fault
		if first == nil {
			first = fault
		}
	}
	if all {
		return first
	}
	return nil
}

// reason is why a call, or a part of one, was rejected.
type reason uint8

const (
	noCredentials reason = iota
	malformed
	unknownToken
	unknownCertificate
	notGranted
	// notOperator: without a policy, an operator's call by somebody else.
	notOperator
	reasonCount
)

var reasonNames = [reasonCount]string{"no_credentials", "malformed", "unknown_token", "unknown_certificate", "not_granted", "not_operator"}

// rejections are those through one API for one reason.
type rejections struct {
	count atomic.Uint64
	// logged is the Unix time in ns of the last line about them, and told how many there had been by then.
	logged atomic.Int64
	told   atomic.Uint64
}

// logEvery is how often the log has a line about rejections through one API for one reason.
const logEvery = time.Minute

// rejected counts a rejection, and logs it unless there was a line just before. verb and domain say what was asked for, where that was looked at.
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

// clip shortens what a caller sent, for messages.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Rejected is how often something was rejected through an API for a reason.
type Rejected struct {
	API, Reason string
	Count       uint64
}

// Stats returns the rejections since the Guard was made, those that have not occurred included.
func (g *Guard) Stats() []Rejected {
	list := make([]Rejected, 0, limiter.APIs*int(reasonCount))
	for d := range limiter.APIs {
		for r := range reasonCount {
			list = append(list, Rejected{limiter.API(d).String(), reasonNames[r], g.seen[d][r].count.Load()})
		}
	}
	return list
}
