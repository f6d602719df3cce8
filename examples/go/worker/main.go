// A worker that sends jobs to an API as fast as the API's owner allows to all workers together.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
)

func main() {
	c, err := sluice.New(os.Getenv("SLUICE"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	api := c.Key("shop", "job", "api.example.com")
	for job := range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := api.Wait(ctx)
		cancel()
		switch {
		case errors.Is(err, sluice.ErrDenied): // not within a second: nothing was spent
			fmt.Println("later:", job)
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("done:", job)
		}
	}
}
