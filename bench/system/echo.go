package system

import (
	"context"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/wire"
)

// Echo starts the bare transport.
func (b *Binaries) Echo(ctx context.Context) (*System, error) { return b.openEcho(ctx, nil) }

func (b *Binaries) openEcho(ctx context.Context, p *papers) (*System, error) {
	s := &System{Name: "echo"}
	if p != nil {
		s.Name = "echo, TLS"
	}
	return s, s.opened(func() error {
		at, err := addrs(1)
		if err != nil {
			return err
		}
		args := []string{"-addr", at[0]}
		if p != nil {
			args = append(args, "-cert", p.cert, "-key", p.key)
		}
		if err := s.start(process.Spec{Name: "echo", Path: b.echo, Args: args}); err != nil {
			return err
		}
		if err := s.listens(ctx, at[0]); err != nil {
			return err
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
