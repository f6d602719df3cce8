package sluicetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/limiter/local/sluicetest"
)

// t is the *testing.T of a test.
var t = new(testing.T)

const rules = `
domain: shop
descriptors:
  - key: user
    limits: [2/1h]
    response: {status: 503, body: later}
`

// login is code under test.
func login(l limit.Limiter, user string) string {
	allowed, err := limit.NewKey(l, "shop", "user", user).Allow(context.Background())
	switch {
	case err != nil:
		return "broken"
	case !allowed:
		return "closed"
	}
	return "open"
}

func ExampleNew() {
	limiter := sluicetest.New(t, `
domain: shop
descriptors:
  - key: user
    limits: [2/1h]
`)
	for range 3 {
		fmt.Println(login(limiter, "ann"))
	}
	// Output:
	// open
	// open
	// closed
}

func ExampleLimiter() {
	var limiter limit.Limiter = sluicetest.New(t, rules)
	fmt.Println(login(limiter, "ann"))
	// Output: open
}

func ExampleLimiter_Deny() {
	limiter := sluicetest.New(t, rules)
	undo := limiter.Deny("shop", "user", "ann")
	fmt.Println(login(limiter, "ann"), login(limiter, "bob"))
	undo()
	fmt.Println(login(limiter, "ann"))

	limiter.Deny("shop")
	fmt.Println(login(limiter, "ann"), login(limiter, "bob"))
	// Output:
	// closed open
	// open
	// closed closed
}

func ExampleLimiter_Fail() {
	limiter := sluicetest.New(t, rules)
	limiter.Fail(errors.New("no network"))
	fmt.Println(login(limiter, "ann"))
	limiter.Fail(nil)
	fmt.Println(login(limiter, "ann"))
	// Output:
	// broken
	// open
}

func ExampleLimiter_Calls() {
	limiter := sluicetest.New(t, rules)
	login(limiter, "ann")
	for _, c := range limiter.Calls() {
		fmt.Println(c.Domain, c.Descriptor, c.Verb, c.Amount)
	}
	// Output: shop [{user ann}] check 1
}

func ExampleLimiter_Key() {
	limiter := sluicetest.New(t, rules)
	login(limiter, "ann")
	d, err := limiter.Key("shop", "user", "ann").Read(context.Background(), 1)
	fmt.Println(d.Remaining, err)
	// Output: 1 <nil>
}

func ExampleLimiter_Check() {
	limiter := sluicetest.New(t, rules)
	limiter.Deny("shop")
	d, err := limiter.Check(context.Background(), limiter.Key("shop", "user", "ann").Spend(1))
	fmt.Println(d.Allowed, d.Rule, d.RetryAfter, d.Response.Status, err)
	// Output: false shop/user 1h0m0s 503 <nil>
}

func ExampleLimiter_CheckEach() {
	limiter := sluicetest.New(t, rules)
	limiter.Deny("shop", "user", "ann")
	list, err := limiter.CheckEach(context.Background(), limiter.Key("shop", "user", "ann").Spend(1), limiter.Key("shop", "user", "bob").Spend(1))
	fmt.Println(list[0].Allowed, list[1].Allowed, err)
	// Output: false true <nil>
}

func ExampleLimiter_CheckAll() {
	limiter := sluicetest.New(t, rules)
	limiter.Deny("shop", "user", "ann")
	batch, err := limiter.CheckAll(context.Background(), limiter.Key("shop", "user", "ann").Spend(1), limiter.Key("shop", "user", "bob").Spend(1))
	fmt.Println(batch.Allowed, batch.Denied(), batch.Decisions[1].Verdict, err)
	// Output: false [0] denied_by_others <nil>
}
