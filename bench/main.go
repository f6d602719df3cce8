// Command bench compares sluice with the bare transport and with other limiters.
// It runs in the folder of this module:
//
//	go run . rows   what sluice is to reach, in under ten minutes
//	go run . run    any grid of callers, checks a call, keys and nodes
//	go run . draw   curves of saved results as SVG
//
// Each command has -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "rows":
			return rows(ctx, args[1:])
		case "run":
			return run(ctx, args[1:])
		case "draw":
			return draw(args[1:])
		}
	}
	return errors.New("want one of rows, run, draw")
}
