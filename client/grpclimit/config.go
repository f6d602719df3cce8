// Package grpclimit applies the limits of a limit.Limiter to gRPC servers and clients in Go, by interceptors: a
// server's reject with RESOURCE_EXHAUSTED, and a client's wait.
//
// Keys make the descriptors, of the client's address, metadata, or the method. The Limiter decides the checks, also when no node
// answers.
package grpclimit

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluicecluster/sluice/client/internal/gate"
	"github.com/sluicecluster/sluice/client/limit"
)

// Call is a call that is checked.
type Call struct {
	Context context.Context
	// Method is the full name, such as "/pkg.Service/Method".
	Method string
	// Outgoing: a client makes the call. When a server does, Context has the metadata of both calls.
	Outgoing bool
}

// Config configures the interceptors.
type Config struct {
	// Domain holds the rules. Required.
	Domain string
	// Keys make the descriptors of a call, one each. Several are one decision: all are allowed, or nothing is spent. Calls to
	// which none applies are not limited. Required, at least one.
	Keys []Key
	// Amount is how many units a call spends; nil means 1. Calls of amount 0 or less are not limited.
	Amount func(c Call) int64
	// Skip reports whether a call is not limited, for example a health check. nil skips none.
	Skip func(c Call) bool
	// MaxWait is how long a call, or message, may wait for the limit, and in a leaky queue. One that would wait longer, or beyond
	// the call's deadline, is denied at once. 0 denies at once whatever would wait; in clients it is as long as the context allows.
	// While a message waits, the stream's flow control slows its sender down.
	MaxWait time.Duration
	// ChargeIf is how many units a call costs by its status. What it has spent before is given back, or more is charged, when it has
	// ended: so parallel calls cannot exceed the limit. nil: the status does not matter. The rule needs cache_denials: false, so
	// that units that were given back count at once. A client's stream has ended when RecvMsg has returned its last result.
	ChargeIf func(code codes.Code) int64
	// InFlight limits how many calls a server handles at a time: each takes a slot of rules with algorithm: concurrency until its handler
	// has returned, and waits for it MaxWait, in order of arrival. Several Keys are one decision after another. The call's context ends
	// when no node has renewed the slot. The Limiter must be a limit.Slots. Clients, ChargeIf and EachMessage do not go with it.
	InFlight bool
	// Failed reports whether a call passes that the Limiter has returned an error for, since the check is invalid, not permitted, or
	// the Limiter is closed. If not, it is denied as by limit.FailClosed, with the error as Decision.Degraded. nil passes it and logs
	// the error once a minute.
	Failed func(ctx context.Context, err error) bool
	// Denied returns the status of a denied call, which passes if that is nil. nil is Denial.
	Denied func(c Call, d limit.Decision) error
	// EachMessage checks every message too, that a server's stream receives or a client's sends; otherwise a stream is checked
	// once, when it begins.
	EachMessage bool
}

func (c *Config) gate() *gate.Gate[Call, Key] {
	return gate.New("grpclimit", c.Domain, c.Keys, c.Amount, c.Skip, c.MaxWait, c.Failed, c.ChargeIf != nil)
}

// Validate returns an error that names the invalid field of c, or nil. The interceptors' constructors panic with it: call it
// first where c comes from a configuration file.
func (c *Config) Validate() error {
	if c.InFlight && (c.ChargeIf != nil || c.EachMessage) {
		return errors.New("grpclimit: ChargeIf and EachMessage do not go with InFlight")
	}
	return c.gate().Validate()
}

// limits is a valid Config and its Gate, for calls of one direction.
type limits struct {
	Config
	gate     *gate.Gate[Call, Key]
	outgoing bool
}

func open(l limit.Limiter, c Config, outgoing bool) *limits {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	if _, ok := l.(limit.Slots); c.InFlight && (!ok || outgoing) {
		panic("grpclimit: InFlight needs a server, and a limit.Slots, as a *sluice.Client is")
	}
	return &limits{c, c.gate().Open(l, outgoing), outgoing}
}

// admit returns the status of a call that is not admitted. Otherwise it returns what settle is to be called with.
func (l *limits) admit(ctx context.Context, method string) ([]limit.Check, error) {
	call := Call{ctx, method, l.outgoing}
	var buf [1]limit.Check // most calls have one
	d, spent, err := l.gate.Admit(ctx, l.gate.Checks(buf[:0], call))
	return spent, l.status(call, &d, err)
}

// hold returns the context of a call that has a slot, or has no limit, and what ends the slot; otherwise the status.
func (l *limits) hold(ctx context.Context, method string) (held context.Context, release func(), _ error) {
	call := Call{ctx, method, false}
	d, held, release, err := l.gate.Hold(ctx, l.gate.Checks(nil, call))
	return held, release, l.status(call, &d, err)
}

// status returns the status of a call that is not admitted by d, or because its context has ended with err; otherwise nil.
func (l *limits) status(call Call, d *limit.Decision, err error) error {
	switch {
	case err != nil:
		return status.FromContextError(err).Err()
	case d.Allowed:
		return nil
	case l.Denied != nil:
		return l.Denied(call, *d)
	}
	return Denial(d)
}

// settle makes what was spent the cost of a call that has ended with err.
func (l *limits) settle(ctx context.Context, spent []limit.Check, err error) {
	if len(spent) == 0 {
		return
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err) // as servers send it
	}
	l.gate.Settle(ctx, spent, l.ChargeIf(st.Code()))
}

// Denial returns the status of a denied call: RESOURCE_EXHAUSTED with a QuotaFailure whose subject is the name of the limit, and
// unless it never may, a RetryInfo that says when to come back (google.rpc error details).
func Denial(d *limit.Decision) error {
	st := status.New(codes.ResourceExhausted, "the rate limit is exceeded")
	quota := &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{Subject: gate.Name(d), Description: "rate limit"}}}
	with, err := st.WithDetails(quota)
	if d.Verdict != limit.VerdictNever {
		with, err = st.WithDetails(quota, &errdetails.RetryInfo{RetryDelay: durationpb.New(max(d.RetryAfter, time.Millisecond))})
	}
	if err != nil { // of messages that can always be encoded, so never
		return st.Err()
	}
	return with.Err()
}
