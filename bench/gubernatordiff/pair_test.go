package gubernatordiff

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/transport/grpcapi"
	"github.com/sluicecluster/sluice/transport/gubernator"
)

// pair is gubernator and sluice's API, one node each, on one clock that the test moves.
type pair struct {
	// ms is the Unix time in milliseconds. It only goes forward.
	ms    int64
	keys  int
	table *bucket.Table

	// addr is the address of sluice's gRPC port, client a client of it.
	addr   string
	client gubernatorv1.V1Client

	in  io.Writer
	out *bufio.Scanner
}

// Decide implements check.Decider.
func (p *pair) Decide(_ context.Context, b *check.Batch) {
	for i := range b.Requests {
		b.Answers[i] = check.Answer{Decision: p.table.Do(p.ms*1_000_000, &b.Requests[i].Request), Source: check.Owned, Owner: "n1"}
	}
}

// alone is the cluster of one node. What it does not implement, no call of gubernator's needs.
type alone struct{ limiter.Cluster }

// Overview implements limiter.Cluster.
func (alone) Overview(context.Context) limiter.Overview {
	self := member.Member{Name: "n1", GRPC: "192.0.2.1:7460"}
	return limiter.Overview{
		View: &member.View{Self: self.Name, Members: []member.Member{self}}, State: limiter.State{MayDecide: true},
	}
}

// Report implements limiter.Cluster.
func (alone) Report(*facts.Node) {}

// newPair starts both at midnight of Wednesday, 15 November 2023.
func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{ms: 1_700_006_400_000}
	var err error
	if p.table, err = bucket.NewTable(bucket.Config{Shards: 7}); err != nil {
		t.Fatal(err)
	}
	hasher, err := limiter.NewHasher([]byte(strings.Repeat("s", limiter.MinSecret)))
	if err != nil {
		t.Fatal(err)
	}
	service, err := limiter.New(limiter.Config{Decider: p, Hasher: hasher, Cluster: alone{}})
	if err != nil {
		t.Fatal(err)
	}
	p.serve(t, service)
	p.startOracle(t)
	return p
}

// serve serves service as a node does, by gRPC until the test ends, and opens a client.
func (p *pair) serve(t *testing.T, service limiter.Service) {
	t.Helper()
	own, err := grpcapi.New(grpcapi.Config{Limiter: service})
	if err != nil {
		t.Fatal(err)
	}
	api, err := gubernator.New(gubernator.Config{Limiter: service, Now: func() time.Time { return time.UnixMilli(p.ms) }})
	if err != nil {
		t.Fatal(err)
	}
	g, served := grpc.NewServer(own.Options(nil)...), make(chan error, 1)
	api.Register(own.Register(g))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { served <- g.Serve(lis) }()
	t.Cleanup(func() {
		g.Stop()
		own.Close()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	p.addr = lis.Addr().String()
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p.client = gubernatorv1.NewV1Client(conn)
}

// build builds a command of gubernator's module and returns its path.
func build(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-o", path, "./"+name)
	build.Dir = "../peers/gubernator"
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", name, err, text)
	}
	return path
}

// startOracle builds gubernator from its own module and starts it until the test ends.
func (p *pair) startOracle(t *testing.T) {
	t.Helper()
	oracle := exec.Command(build(t, "oracle"))
	oracle.Stderr = os.Stderr
	in, err := oracle.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := oracle.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := oracle.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // which ends it
		if err := oracle.Wait(); err != nil {
			t.Errorf("the oracle: %v", err)
		}
	})
	p.in, p.out = in, bufio.NewScanner(out)
}

// ask asks both about q. Gubernator is not told to be GLOBAL: what it answers then depends on its timers.
func (p *pair) ask(t *testing.T, q *gubernatorv1.RateLimitReq) (theirs, ours *gubernatorv1.RateLimitResp) {
	t.Helper()
	req := &gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{q}}
	exact := proto.CloneOf(req)
	exact.GetRequests()[0].Behavior &^= gubernatorv1.Behavior_GLOBAL
	body, err := proto.Marshal(exact)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(p.in, p.ms, hex.EncodeToString(body)); err != nil {
		t.Fatal(err)
	}
	if !p.out.Scan() {
		t.Fatalf("the oracle has gone: %v", p.out.Err())
	}
	if body, err = hex.DecodeString(p.out.Text()); err != nil {
		t.Fatal(err)
	}
	var res gubernatorv1.GetRateLimitsResp
	if err := proto.Unmarshal(body, &res); err != nil {
		t.Fatal(err)
	}
	own, err := p.client.GetRateLimits(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res.GetResponses()[0], own.GetResponses()[0]
}

// key returns a key that nobody has asked about.
func (p *pair) key() string {
	p.keys++
	return fmt.Sprint("key-", p.keys)
}
