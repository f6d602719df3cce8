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
	commands := map[string]func(context.Context, []string) error{"rows": rows, "run": run, "draw": draw}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("want one of rows, run, draw")
	}
	return commands[args[0]](ctx, args[1:])
}
