// A program that spends for a user, a tenant and everybody at once, and says who denied.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	sluice "github.com/sluicecluster/sluice/client"
)

func main() {
	c, err := sluice.New(os.Getenv("SLUICE"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	user, tenant, all := c.Key("shop", "user", "carol"), c.Key("shop", "tenant", "acme"), c.Key("shop", "all", "orders")
	for range 2 {
		b, err := c.CheckAll(context.Background(), user.Spend(2), tenant.Spend(2), all.Spend(2))
		if err != nil {
			log.Fatal(err)
		}
		for _, i := range b.Denied() {
			d := b.Decisions[i]
			wait, known := d.RetryIn()
			fmt.Printf("check %d, limit %s: %d of %d left, again in %v (%v)\n", i, d.LimitName, d.Remaining, d.Limit, wait, known)
		}
		fmt.Println("allowed:", b.Allowed)
	}
}
