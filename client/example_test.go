package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
)

// connect returns a client of a node that lets every descriptor spend 3 units a minute, and tenants 5.
func connect() (c *sluice.Client, stop func()) {
	addr, stopNode := sluice.NodeForExamples()
	c, err := sluice.New(addr)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		log.Fatal(err)
	}
	return c, func() { c.Close(); stopNode() }
}

func Example() {
	c, stop := connect() // c, err := sluice.New("sluice.default.svc:7460")
	defer stop()
	key := c.Key("auth", "auth_type", "login", "user", "ann")
	for range 4 {
		ok, err := key.Allow(context.Background())
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExampleClient_Key() {
	c, stop := connect()
	defer stop()
	ctx, key := context.Background(), c.Key("shop", "user", "ann")

	d, err := key.Check(ctx, 2) // spend 2 if that is allowed
	fmt.Println(d.Allowed, d.Remaining, d.Limit, d.LimitName, err)
	d, err = key.Check(ctx, 2)
	wait, known := d.RetryIn()
	fmt.Println(d.Allowed, wait, known, err)
	d, err = key.Read(ctx, 1) // would 1 be allowed? This spends nothing
	fmt.Println(d.Allowed, d.Remaining, err)
	d, err = key.Charge(ctx, 1) // what was used is known now; it is spent in any case
	fmt.Println(d.Remaining, err)
	d, err = key.Refund(ctx, 2) // not needed after all
	fmt.Println(d.Remaining, err)
	fmt.Println(key.Reset(ctx))
	// Output:
	// true 1 3 per minute <nil>
	// false 20s true <nil>
	// true 1 <nil>
	// 0 <nil>
	// 2 <nil>
	// <nil>
}

// Wait blocks until the limit admits, or says at once that it will not do so in time.
func ExampleClient_Key_wait() {
	c, stop := connect()
	defer stop()
	key := c.Key("outbound", "host", "api.example.com")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(key.Wait(ctx))
	fmt.Println(key.WaitN(ctx, 3))
	fmt.Println(key.WaitN(ctx, 4))
	// Output:
	// <nil>
	// sluice: the limit would admit this only after the context's deadline
	// sluice: the amount is more than the limit can ever admit
}

// A limit may come with the check instead of a rule.
func ExampleClient_Key_withLimits() {
	c, stop := connect()
	defer stop()
	key := c.Key("shop", "import", "42").WithLimits(limit.PerMinute(1))
	for range 2 {
		fmt.Println(key.Allow(context.Background()))
	}
	// Output:
	// true <nil>
	// false <nil>
}

// A user and a tenant are asked as one: neither is spent when one denies.
func ExampleClient_CheckAll() {
	c, stop := connect()
	defer stop()
	user, tenant := c.Key("shop", "user", "ann"), c.Key("shop", "tenant", "acme")
	b, err := c.CheckAll(context.Background(), user.Spend(3), tenant.Spend(3))
	fmt.Println(b.Allowed, b.Denied(), err)
	b, err = c.CheckAll(context.Background(), user.Spend(1), tenant.Spend(1))
	wait, _ := b.RetryIn()
	fmt.Println(b.Allowed, b.Denied(), b.Strictest().Rule, wait, err)
	// Output:
	// true [] <nil>
	// false [0] shop/user 20s <nil>
}

// Independent checks travel together.
func ExampleClient_CheckEach() {
	c, stop := connect()
	defer stop()
	decisions, err := c.CheckEach(context.Background(), c.Key("shop", "user", "ann").Spend(1), c.Key("shop", "user", "bob").Spend(4))
	for _, d := range decisions {
		fmt.Println(d.Allowed, d.Verdict)
	}
	fmt.Println(err)
	// Output:
	// true allowed
	// false denied_never
	// <nil>
}

// A check has the failure policy of its Key, else that of its rule, else that of the client.
func ExampleFailByRule() {
	c, err := sluice.New("127.0.0.1:1", // where nobody listens
		sluice.WithFailurePolicy(sluice.FailByRule(sluice.FailOpen())), // the default
		sluice.WithTimeout(50*time.Millisecond),
		sluice.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for _, key := range []sluice.Key{c.Key("shop", "user", "ann"), c.Key("auth", "login", "ann").OnFailure(sluice.FailClosed())} {
		d, err := key.Check(context.Background(), 1)
		fmt.Println(d.Allowed, d.Source, errors.Is(d.Degraded, sluice.ErrUnavailable), err)
	}
	// Output:
	// true fail_open true <nil>
	// false fail_closed true <nil>
}

func ExampleClient_Ready() {
	c, err := sluice.New("127.0.0.1:1", sluice.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(c.Ready(ctx))
	// sluice: no node answered at 127.0.0.1:1: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused
}

func ExampleError() {
	c, stop := connect()
	defer stop()
	_, err := c.Key("guests", "user", "ann").Allow(context.Background())
	fmt.Println(err, errors.Is(err, sluice.ErrForbidden))
	_, err = c.Key("shop", "user").Allow(context.Background())
	fmt.Println(err, errors.Is(err, sluice.ErrInvalid))
	// Output:
	// sluice: domain: not for this caller true
	// sluice: descriptor: a key without a value: user true
}

func ExampleClient_Stats() {
	c, stop := connect()
	defer stop()
	for range 4 {
		c.Key("shop", "user", "ann").Allow(context.Background())
	}
	s := c.Stats()
	fmt.Println(s.Allowed[limit.SourceOwned], s.Denied[limit.SourceOwned], s.Nodes)
	// Output: 3 1 1
}

// A charge with a name is made once, so it is repeated after a lost answer, by the client and by its caller.
func ExampleKey_once() {
	c, stop := connect()
	defer stop()
	d, err := c.Key("shop", "tenant", "acme").Once("order-4711").Charge(context.Background(), 2)
	fmt.Println(d.Remaining, err)
	// Output: 3 <nil>
}

// Tokens of a language model are known when it has answered. Until then, at most 800 of the user and of the team are set aside.
func ExampleClient_Reserve() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	r, err := c.Reserve(ctx, sluice.ReserveRequest{
		Keys:  []sluice.Key{c.Key("llm", "user", "ann"), c.Key("llm", "team", "red")},
		Units: 800, TTL: time.Minute,
	})
	if err != nil {
		return // no node has answered, or it is a *sluice.DeniedError, which says when to come back
	}
	used := int64(520) // of the answer
	// A request may have ended by now: it is settled nevertheless.
	s, err := r.Settle(context.WithoutCancel(ctx), used)
	fmt.Println(s.Charged, s.Returned, err)
	// Output: 520 280 <nil>
}

// The slot is held until Release, or until no node renews it: then its context ends.
func ExampleClient_Acquire() {
	c, stop := connect()
	defer stop()
	work := func(ctx context.Context) error { return ctx.Err() }
	send := func(ctx context.Context) error {
		slot, err := c.Acquire(ctx, sluice.AcquireRequest{Key: c.Key("jobs", "queue", "mail")})
		if err != nil {
			return err // a *sluice.DeniedError, or no node has answered
		}
		defer slot.Release()
		return work(slot.Context())
	}
	fmt.Println(send(context.Background()))
	// Output: <nil>
}

// Without a slot there is an error, and the context has ended with it as its cause: what does not look at the error does not run.
func ExampleDeniedError() {
	c, stop := connect()
	defer stop()
	key := c.Key("jobs", "queue", "mail")
	slot, err := c.Acquire(context.Background(), sluice.AcquireRequest{Key: key, Units: 3, MaxWait: -1}) // 3 are not free
	defer slot.Release()
	if denied, ok := errors.AsType[*sluice.DeniedError](err); ok {
		fmt.Println(denied.RetryIn())
	}
	fmt.Println(slot.Context().Err(), context.Cause(slot.Context()) == err)
	// Output:
	// 1s true
	// context canceled true
}
