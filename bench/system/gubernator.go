package system

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/wire"
)

// Gubernator starts a cluster whose nodes can hold so many keys each.
func (b *Binaries) Gubernator(ctx context.Context, nodes, keys int) (*System, error) {
	s := &System{Name: fmt.Sprintf("gubernator ×%d", nodes)}
	return s, s.opened(s.startGubernator(ctx, b, nodes, keys))
}

func (s *System) startGubernator(ctx context.Context, b *Binaries, nodes, keys int) error {
	at, err := addrs(2 * nodes)
	if err != nil {
		return err
	}
	ask := at[:nodes]
	for i, a := range ask {
		if err := s.start(process.Spec{Name: fmt.Sprintf("gubernator-%d", i+1), Path: b.gubernator, Args: []string{
			"-addr", a, "-http", at[nodes+i], "-peers", strings.Join(ask, ","), "-cache", strconv.Itoa(keys + keys/5 + 1000),
		}}); err != nil {
			return err
		}
	}
	for _, a := range ask {
		if err := s.listens(ctx, a); err != nil {
			return err
		}
	}
	if s.conns, err = wire.Dial(ask, wire.RawCodec()); err != nil {
		return err
	}
	s.Target = wire.Gubernator(s.conns)
	return s.answers(ctx)
}
