package local_test

import (
	"context"
	"errors"
	"fmt"
	"testing/fstest"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/limiter/local"
)

var ctx = context.Background()

const shop = `
domain: shop
descriptors:
  - key: user
    limits: [3/1h]
`

// must is for rules that are constants of the program.
func must(l *local.Limiter, err error) *local.Limiter {
	if err != nil {
		panic(err)
	}
	return l
}

func Example() {
	limiter, err := local.New(local.Text(`
domain: shop
descriptors:
  - key: user       # each user: 3 units an hour
    limits: [3/1h]
  - key: user
    value: robot    # but this one: none
    limits: [0/1h]
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, user := range []string{"ann", "robot"} {
		allowed, err := limiter.Key("shop", "user", user).Allow(context.Background())
		fmt.Println(user, allowed, err)
	}
	// Output:
	// ann true <nil>
	// robot false <nil>
}

// The rule files may be a directory, os.DirFS("rules"), or an embed.FS, which is in the program.
func ExampleNew() {
	rules := fstest.MapFS{
		"shop.yaml":      {Data: []byte("domain: shop\ndescriptors: [{key: user, limits: [3/1h]}]")},
		"mail/mail.yaml": {Data: []byte("domain: mail\ndescriptors: [{key: user, limit: [3/1h]}]")},
	}
	_, err := local.New(rules)
	fmt.Println(err)
	// Output: sluice: local: mail/mail.yaml:2: mail.descriptors[0]: the key limit belongs in pool, not here; did you mean limits?
}

func ExampleText() {
	limiter := must(local.New(local.Text("domain: shop\ndescriptors: [{key: user, limits: [3/1h]}]")))
	d, err := limiter.Key("shop", "user", "ann").Check(ctx, 3)
	fmt.Println(d.Allowed, d.Remaining, err)
	// Output: true 0 <nil>
}

func ExampleWithMemory() {
	limiter, err := local.New(local.Text(shop), local.WithMemory(256<<20)) // some 4 million users
	fmt.Println(limiter != nil, err)
	// Output: true <nil>
}

func ExampleWithMergedDomains() {
	rules := fstest.MapFS{
		"users.yaml": {Data: []byte("domain: shop\ndescriptors: [{key: user, limits: [3/1h]}]")},
		"paths.yaml": {Data: []byte("domain: shop\ndescriptors: [{key: path, limits: [9/1h]}]")},
	}
	limiter := must(local.New(rules, local.WithMergedDomains()))
	d, err := limiter.Key("shop", "path", "/cart").Check(ctx, 1)
	fmt.Println(d.Rule, d.Remaining, err)
	// Output: shop/path 8 <nil>
}

func ExampleWithKnownDomainsOnly() {
	limiter := must(local.New(local.Text(shop), local.WithKnownDomainsOnly()))
	_, err := limiter.Key("shopp", "user", "ann").Check(ctx, 1)
	fmt.Println(errors.Is(err, limit.ErrUnknownDomain), err)
	// Output: true sluice: domain: no rules for domain shopp
}

// A Limiter is a limit.Limiter, as a client of a cluster is, so that a program may take either.
func ExampleLimiter() {
	buy := func(l limit.Limiter, user string) string {
		if ok, err := limit.NewKey(l, "shop", "user", user).Allow(ctx); err != nil || !ok {
			return "sold out"
		}
		return "sold"
	}
	fmt.Println(buy(must(local.New(local.Text(shop))), "ann"))
	// Output: sold
}

func ExampleLimiter_Key() {
	limiter := must(local.New(local.Text(shop)))
	ann := limiter.Key("shop", "user", "ann")
	for range 4 {
		allowed, err := ann.Allow(ctx)
		fmt.Print(allowed, " ", err, " ")
	}
	// Output: true <nil> true <nil> true <nil> false <nil>
}

func ExampleLimiter_Check() {
	limiter := must(local.New(local.Text(shop)))
	d, err := limiter.Check(ctx, limit.Check{
		Domain: "shop", Descriptor: []limit.Entry{{Key: "user", Value: "ann"}}, Verb: limit.VerbCharge, Amount: 2,
	})
	fmt.Println(d.Allowed, d.Remaining, d.Source, err)
	// Output: true 1 local <nil>
}

func ExampleLimiter_CheckEach() {
	limiter := must(local.New(local.Text(shop)))
	decisions, err := limiter.CheckEach(ctx, limiter.Key("shop", "user", "ann").Spend(3), limiter.Key("shop", "user", "bob").Spend(4))
	fmt.Println(decisions[0].Verdict, decisions[1].Verdict, err)
	// Output: allowed denied_never <nil>
}

func ExampleLimiter_CheckAll() {
	limiter := must(local.New(local.Text(`
domain: shop
descriptors:
  - {key: user, limits: [3/1h]}
  - {key: all, limits: [1/1h]}
`)))
	ann, all := limiter.Key("shop", "user", "ann").Spend(1), limiter.Key("shop", "all", "").Spend(1)
	for range 2 {
		batch, err := limiter.CheckAll(ctx, ann, all)
		fmt.Println(batch.Allowed, batch.Decisions[0].Verdict, batch.Decisions[1].Verdict, err)
	}
	// Output:
	// true allowed allowed <nil>
	// false denied_by_others denied <nil>
}

func ExampleLimiter_Reload() {
	limiter := must(local.New(local.Text(shop)))
	ann := limiter.Key("shop", "user", "ann")
	_, _ = ann.Check(ctx, 3)
	err := limiter.Reload(local.Text("domain: shop\ndescriptors: [{key: user, limits: [5/1h]}]"))
	d, _ := ann.Read(ctx, 1)
	fmt.Println(d.Remaining, err)
	// Output: 2 <nil>
}
