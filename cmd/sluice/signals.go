package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/sluicecluster/sluice/internal/node"
)

// signals are those of a process that is a node. docs/operate/deploy.md lists what they do. The first signal to stop ends the
// context of the command.
type signals struct {
	stop, reload, unused chan os.Signal
	ctx                  context.Context
	close                context.CancelFunc
	group                sync.WaitGroup
}

// openSignals keeps signals that would end the process for follow. Call it before files are read, which may take long.
func openSignals() *signals {
	s := &signals{stop: make(chan os.Signal, 4), reload: make(chan os.Signal, 1), unused: make(chan os.Signal, 4)}
	s.ctx, s.close = context.WithCancel(context.Background())
	s.notify()
	return s
}

// follow has n answer the signals until Close.
func (s *signals) follow(n *node.Node, log *slog.Logger) {
	signal.Notify(s.stop, os.Interrupt, syscall.SIGTERM) // until now the second signal ends the process: there is nothing to hand over
	s.group.Go(func() { s.hurry(n) })
	s.group.Go(func() {
		for {
			select {
			case <-s.reload:
				n.Reload(s.ctx)
			case sig := <-s.unused:
				log.Info("ignored a signal that has no meaning here", "signal", sig)
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// hurry cuts the handover of n short at the second signal to stop. A third one ends the process at once.
func (s *signals) hurry(n *node.Node) {
	defer signal.Stop(s.stop)
	for range 2 {
		select {
		case <-s.stop:
		case <-s.ctx.Done():
			return
		}
	}
	n.Hurry()
}

// Close gives the signals their default meaning again.
func (s *signals) Close() {
	s.close()
	s.group.Wait()
	signal.Stop(s.reload)
	signal.Stop(s.unused)
}
