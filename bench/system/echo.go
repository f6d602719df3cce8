package system

import (
	"context"
	"fmt"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/wire"
)

// Echo starts the bare transport.
func (b *Binaries) Echo(ctx context.Context) (*System, error) { return b.openEcho(ctx, "echo", 1, nil) }

// Echoes starts so many processes of it, which know nothing of each other.
func (b *Binaries) Echoes(ctx context.Context, n int) (*System, error) {
	return b.openEcho(ctx, fmt.Sprintf("echo ×%d", n), n, nil)
}

func (b *Binaries) openEcho(ctx context.Context, name string, n int, p *papers) (*System, error) {
	s := &System{Name: name}
	return s, s.opened(func() error {
		at, err := addrs(n)
		if err != nil {
			return err
		}
		for _, addr := range at {
			args := []string{"-addr", addr}
			if p != nil {
				args = append(args, "-cert", p.cert, "-key", p.key)
			}
			if err := s.start(process.Spec{Name: "echo", Path: b.echo, Args: args}); err != nil {
				return err
			}
			if err := s.listens(ctx, addr); err != nil {
				return err
			}
		}
		if s.conns, err = wire.Dial(at, p.dial()...); err != nil {
			return err
		}
		s.Target = wire.Sluice{Conns: s.conns}
		return s.answers(ctx)
	}())
}

// opened stops s when it did not come up.
func (s *System) opened(err error) error {
	if err != nil {
		s.Stop()
	}
	return err
}
