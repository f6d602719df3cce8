package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bench/process"
	"github.com/sluicecluster/sluice/internal/load"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func members(ctx context.Context, conn *grpc.ClientConn) (*adminv1alpha1.MembersResponse, error) {
	return adminv1alpha1.NewAdminServiceClient(conn).Members(ctx, &adminv1alpha1.MembersRequest{})
}

// agree is nil when the nodes of conns see each other serving, and no other node, under one ring.
func agree(ctx context.Context, conns []*grpc.ClientConn) error {
	ring := ""
	for i, c := range conns {
		res, err := members(ctx, c)
		if err != nil {
			return err
		}
		serving := 0
		for _, m := range res.GetMembers() {
			if m.GetState() == "serving" {
				serving++
			}
		}
		if serving != len(conns) || i > 0 && res.GetRing() != ring {
			return fmt.Errorf("%s sees %d of %d serving", res.GetSelf(), serving, len(conns))
		}
		ring = res.GetRing()
	}
	return nil
}

// inPlace is nil when each node owns the partitions that the ring assigns to it, and none is in a handoff or without a replica.
func inPlace(ctx context.Context, conns []*grpc.ClientConn) error {
	for _, c := range conns {
		res, err := members(ctx, c)
		if err != nil {
			return err
		}
		h := res.GetPartitionCounts()
		for _, m := range res.GetMembers() {
			if m.GetName() == res.GetSelf() && m.GetPartitions() != h.GetOwned() {
				return fmt.Errorf("%s owns %d of its %d partitions", m.GetName(), h.GetOwned(), m.GetPartitions())
			}
		}
		if h.GetHandingOver()+h.GetTakingOver()+h.GetUnprotected() > 0 {
			return fmt.Errorf("%s: %d partitions in a handoff, %d takeovers, %d without a replica", res.GetSelf(), h.GetHandingOver(), h.GetTakingOver(), h.GetUnprotected())
		}
	}
	return nil
}

// Newcomer is one more node of a running cluster, which no Target calls.
type Newcomer struct {
	Process *process.Process
	name    string
	addr    string // gRPC
}

// Stop has the node hand its counters over, and ends it.
func (n *Newcomer) Stop() { n.Process.StopWithin(slowStop) }

// Grow starts one more node of sluice, with the flags of those of s. It does not wait. The caller stops the node.
func (s *System) Grow(ctx context.Context, b *Binaries) (*Newcomer, error) {
	res, err := members(ctx, s.conns[0])
	if err != nil {
		return nil, err
	}
	var join []string
	for _, m := range res.GetMembers() {
		if a := m.GetGossipAddress(); a != "" { // a member that has left may still be a voter, and its address is not known
			join = append(join, a)
		}
	}
	at, err := addrs(4)
	if err != nil {
		return nil, err
	}
	n := &Newcomer{name: nodeName(len(s.Processes)), addr: at[0]}
	n.Process, err = process.Start(b.node(n.name, at, join, append([]string{"--handover-timeout", slowStop.String()}, s.Flags...)...))
	return n, err
}

// Settled waits until n and the nodes of s own what the ring assigns to them.
func (s *System) Settled(ctx context.Context, n *Newcomer) error {
	conn, err := s.config.Dial(n.addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // closing once has no error
	all := append([]*grpc.ClientConn{conn}, s.conns...)
	return s.until(ctx, n.name+" owns its partitions", func(ctx context.Context) error {
		select {
		case <-n.Process.Ended():
			return fmt.Errorf("%s has ended; its last lines: %q", n.name, n.Process.Tail())
		default:
		}
		// Before the node serves, the ring assigns nothing to it.
		return errors.Join(agree(ctx, all), inPlace(ctx, all))
	})
}

// Alone waits until the nodes of s are the only ones, agree, and own everything.
func (s *System) Alone(ctx context.Context) error {
	return s.until(ctx, "the nodes own everything", func(ctx context.Context) error {
		return errors.Join(agree(ctx, s.conns), inPlace(ctx, s.conns))
	})
}

// Metrics reads the metrics of the node with its HTTP port at addr, each summed over its labels.
func Metrics(ctx context.Context, addr string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if i := strings.LastIndexByte(line, ' '); i >= 0 && line[0] != '#' {
			name, _, _ := strings.Cut(line[:i], "{")
			v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", addr, err)
			}
			all[name] += v
		}
	}
	if res.StatusCode != http.StatusOK || len(all) == 0 {
		return nil, fmt.Errorf("%s: %s, %d metrics", addr, res.Status, len(all))
	}
	return all, nil
}

// check is a check of a key.
func check(domain, key string) *sluicev1.Check {
	return &sluicev1.Check{Domain: domain, Descriptor_: []*sluicev1.Entry{{Key: "user", Value: key}}}
}

// Owners returns the number of the node that owns each of n keys, once partitions no longer move.
func (s *System) Owners(ctx context.Context, domain string, n int) ([]uint8, error) {
	if err := s.Alone(ctx); err != nil {
		return nil, err
	}
	number := map[string]uint8{}
	for i := range s.conns {
		number[nodeName(i)] = uint8(i)
	}
	const batch = 1000
	list := make([]uint8, 0, n)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for len(list) < n {
		req := &sluicev1.CheckRequest{}
		for i := len(list); i < min(len(list)+batch, n); i++ {
			c := check(domain, load.Name("user", uint32(i)))
			c.Verb = sluicev1.Verb_VERB_READ
			req.Checks = append(req.Checks, c)
		}
		res, err := sluicev1.NewRateLimitServiceClient(s.conns[0]).Check(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("asking for the owners of keys: %w", err)
		}
		for _, d := range res.GetDecisions() {
			node, ok := number[d.GetOwner()]
			if !ok {
				return nil, fmt.Errorf("the owner of a key is %q: %v", d.GetOwner(), d)
			}
			list = append(list, node)
		}
	}
	return list, nil
}

// SameSize returns an error when the echo's response to a hundred checks differs from sluice's by more than a twentieth in
// length: then the echo is no measure of sluice's transport.
func SameSize(ctx context.Context, echo, sluice *System) error {
	var size [2]int
	for i, s := range []*System{echo, sluice} {
		req := &sluicev1.CheckRequest{}
		for range 100 {
			req.Checks = append(req.Checks, check("allowed", "size"))
		}
		res, err := sluicev1.NewRateLimitServiceClient(s.conns[0]).Check(ctx, req)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		size[i] = proto.Size(res)
	}
	if d := size[0] - size[1]; d*20 > size[1] || -d*20 > size[1] {
		return fmt.Errorf("the echo answers %d bytes where %s answers %d: bring echo/main.go up to date", size[0], sluice.Name, size[1])
	}
	return nil
}
