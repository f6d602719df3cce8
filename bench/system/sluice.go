package system

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/wire"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Sluice starts a cluster that is to hold so many keys, and waits until all nodes agree.
func (b *Binaries) Sluice(ctx context.Context, nodes, keys int) (*System, error) {
	return b.SluiceWith(ctx, fmt.Sprintf("sluice ×%d", nodes), nodes, keys)
}

// SluiceWith is Sluice under another name, of which all nodes have further flags.
func (b *Binaries) SluiceWith(ctx context.Context, name string, nodes, keys int, flags ...string) (*System, error) {
	s := &System{Name: name}
	return s, s.opened(s.startSluice(ctx, b, nodes, keys, nil, flags...))
}

func (s *System) startSluice(ctx context.Context, b *Binaries, nodes, keys int, p *papers, flags ...string) error {
	// For each node: gRPC, HTTP, peer, gossip.
	at, err := addrs(4 * nodes)
	if err != nil {
		return err
	}
	var join, ask []string
	for i := range nodes {
		ask, s.HTTP = append(ask, at[4*i]), append(s.HTTP, at[4*i+1])
		join = append(join, at[4*i+3])
	}
	if nodes == 1 {
		join = nil
	}
	for i := range nodes {
		spec, err := b.node(nodeName(i), [4]string(at[4*i:]), join, keys)
		if err != nil {
			return err
		}
		spec.Args = append(spec.Args, flags...)
		if err := s.start(spec); err != nil {
			return err
		}
	}
	for _, a := range ask {
		if err := s.listens(ctx, a); err != nil {
			return err
		}
	}
	if s.conns, err = wire.Dial(ask, p.dial()...); err != nil {
		return err
	}
	s.Target = wire.Sluice{Conns: s.conns}
	if err := s.until(ctx, "all nodes of sluice agree", s.agree); err != nil {
		return err
	}
	return s.answers(ctx)
}

// node says how to start a node with its four addresses (gRPC, HTTP, peer, gossip), which
// is to hold so many keys.
func (b *Binaries) node(name string, at [4]string, join []string, keys int) (process.Spec, error) {
	args := []string{"serve", "--name", name, "--bind", host, "--rules", b.Rules, "--log-level", "warn",
		"--max-entries", strconv.Itoa(keys + keys/5 + 1000)}
	for i, flag := range []string{"--grpc-port", "--http-port", "--peer-port", "--gossip-port"} {
		_, port, err := net.SplitHostPort(at[i])
		if err != nil {
			return process.Spec{}, err
		}
		args = append(args, flag, port)
	}
	if len(join) > 0 {
		args = append(args, "--join", strings.Join(join, ","), "--bootstrap-expect", strconv.Itoa(len(join)))
	}
	return process.Spec{Name: name, Path: b.sluice, Args: args}, nil
}

func nodeName(i int) string { return "n" + strconv.Itoa(i+1) }

// agree is nil when all nodes see all serving, under one ring.
func (s *System) agree(ctx context.Context) error {
	ring := ""
	for i, c := range s.conns {
		res, err := sluicev1.NewSluiceServiceClient(c).Members(ctx, &sluicev1.MembersRequest{})
		if err != nil {
			return err
		}
		serving := 0
		for _, m := range res.GetMembers() {
			if m.GetState() == "serving" {
				serving++
			}
		}
		if serving != len(s.conns) || i > 0 && res.GetRing() != ring {
			return fmt.Errorf("%s sees %d of %d serving", nodeName(i), serving, len(s.conns))
		}
		ring = res.GetRing()
	}
	return nil
}

// Holders returns the number of the node that holds each key.
func (s *System) Holders(ctx context.Context, domain string, keys *load.Keys) ([]uint8, error) {
	number := map[string]uint8{}
	for i := range s.conns {
		number[nodeName(i)] = uint8(i)
	}
	const batch = 1000
	list := make([]uint8, 0, keys.Len())
	client := sluicev1.NewSluiceServiceClient(s.conns[0])
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for len(list) < keys.Len() {
		req := &sluicev1.CheckRequest{}
		for i := len(list); i < min(len(list)+batch, keys.Len()); i++ {
			req.Checks = append(req.Checks, &sluicev1.Check{
				Domain: domain, Descriptor_: []*sluicev1.Entry{{Key: "user", Value: keys.At(uint32(i))}}, Verb: sluicev1.Verb_VERB_READ,
			})
		}
		res, err := client.Check(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("asking who holds keys: %w", err)
		}
		for _, d := range res.GetDecisions() {
			n, ok := number[d.GetHolder()]
			if !ok {
				return nil, fmt.Errorf("a key is held by %q: %v", d.GetHolder(), d)
			}
			list = append(list, n)
		}
	}
	return list, nil
}
