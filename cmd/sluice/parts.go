package main

import (
	"context"
	"fmt"
	"sync"
)

// parts are the goroutines of a node. The first failure is reported.
type parts struct {
	ctx    context.Context
	stop   context.CancelFunc
	group  sync.WaitGroup
	failed chan error
}

func newParts() *parts {
	p := &parts{failed: make(chan error, 1)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

func (p *parts) run(name string, f func(context.Context) error) {
	p.group.Go(func() {
		if err := f(p.ctx); err != nil {
			select {
			case p.failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	})
}

func (p *parts) wait() { p.group.Wait() }
