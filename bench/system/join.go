package system

import (
	"context"
	"fmt"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/wire"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Newcomer is one more node of a running cluster, which the Target does not ask.
type Newcomer struct {
	Process *process.Process
	name    string
	addr    string // gRPC
}

// Grow starts one more node of sluice, which is to hold so many keys, beside those of s.
// It does not wait. Whoever grows ends the process.
func (s *System) Grow(ctx context.Context, b *Binaries, keys int) (*Newcomer, error) {
	res, err := sluicev1.NewSluiceServiceClient(s.conns[0]).Members(ctx, &sluicev1.MembersRequest{})
	if err != nil {
		return nil, err
	}
	var join []string
	for _, m := range res.GetMembers() {
		if a := m.GetGossipAddress(); a != "" { // a member that has left may still be counted, and nobody knows where it was
			join = append(join, a)
		}
	}
	at, err := addrs(4)
	if err != nil {
		return nil, err
	}
	name := nodeName(len(s.Processes))
	spec, err := b.node(name, [4]string(at), join, keys)
	if err != nil {
		return nil, err
	}
	p, err := process.Start(spec)
	if err != nil {
		return nil, err
	}
	return &Newcomer{Process: p, name: name, addr: at[0]}, nil
}

// Settled waits until n holds what the ring gives to it, and no partition of the
// cluster is on its way or without a copy.
func (s *System) Settled(ctx context.Context, n *Newcomer) error {
	conns, err := wire.Dial([]string{n.addr})
	if err != nil {
		return err
	}
	defer wire.Hangup(conns)
	all := append(conns, s.conns...)
	return s.until(ctx, n.name+" holds its part", func(ctx context.Context) error {
		select {
		case <-n.Process.Ended():
			return fmt.Errorf("%s has ended; its last lines: %q", n.name, n.Process.Tail())
		default:
		}
		for i, c := range all {
			res, err := sluicev1.NewSluiceServiceClient(c).Members(ctx, &sluicev1.MembersRequest{})
			if err != nil {
				return err
			}
			h := res.GetHoldings()
			for _, m := range res.GetMembers() {
				if m.GetName() == res.GetSelf() && m.GetPartitions() != h.GetHolding() {
					return fmt.Errorf("%s holds %d of its %d partitions", m.GetName(), h.GetHolding(), m.GetPartitions())
				}
			}
			if i == 0 && len(res.GetMembers()) <= len(s.conns) {
				return fmt.Errorf("%s sees %d members", n.name, len(res.GetMembers()))
			}
			if h.GetHandingOver()+h.GetClaims()+h.GetUnprotected() > 0 {
				return fmt.Errorf("%s: %d partitions on their way, %d claims, %d without a copy", res.GetSelf(), h.GetHandingOver(), h.GetClaims(), h.GetUnprotected())
			}
		}
		return nil
	})
}

// Shrunk waits until the nodes of s are among themselves again and each holds its part.
func (s *System) Shrunk(ctx context.Context) error {
	return s.until(ctx, "the others hold all again", func(ctx context.Context) error {
		if err := s.agree(ctx); err != nil {
			return err
		}
		for _, c := range s.conns {
			res, err := sluicev1.NewSluiceServiceClient(c).Members(ctx, &sluicev1.MembersRequest{})
			if err != nil {
				return err
			}
			if h := res.GetHoldings(); h.GetHandingOver()+h.GetClaims()+h.GetUnprotected() > 0 {
				return fmt.Errorf("%s has %d partitions on their way, %d claims, %d without a copy", res.GetSelf(), h.GetHandingOver(), h.GetClaims(), h.GetUnprotected())
			}
		}
		return nil
	})
}
