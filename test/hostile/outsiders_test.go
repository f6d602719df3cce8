package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
	"github.com/sluicecluster/sluice/test/rawh2"
)

// An unauthenticated client comes to every port of a node that serves others. They are served as before, the unauthenticated client is
// rejected, and when it is gone nothing of it is left. `go run ./test/scenario hostile` runs this, each for SIEGE=10s.

// outsider is somebody who means no good.
type outsider struct {
	name string
	// come does its worst to n until ctx ends, and returns what is wrong with how it was received.
	come func(ctx context.Context, n *process.Node) error
}

var outsiders = []outsider{
	{"garbage", garbage},
	{"a byte now and then", drip},
	{"5,000 idle connections", idle},
	{"5,000 idle HTTP/2 connections", idleHTTP2},
	{"messages of 64 MiB", huge},
	{"gzip bombs", bombs},
	{"streams opened and cancelled", reset},
	{"answers that nobody reads", unread},
	{"messages that do not end", halves},
}

func TestOutsiders(t *testing.T) {
	length := process.Setting(t, "SIEGE", 10*time.Second)
	nodes := process.Cluster(t, 3, "")
	n := nodes[0]
	disturbed := func(ctx context.Context) time.Duration { return p99(t, patrons(ctx, n, keysOf("patron", 1000))) }
	disturbed(within(t, length/2)) // what others leave behind is there before
	before := rest(t, n, nil)
	t.Logf("at rest: %v", before)
	for _, s := range outsiders {
		t.Run(s.name, func(t *testing.T) {
			quiet := disturbed(within(t, length/2))
			ctx := within(t, length)
			var wrong error
			var gone sync.WaitGroup
			gone.Go(func() { wrong = s.come(ctx, n) })
			busy := disturbed(ctx)
			during := n.Vitals()
			gone.Wait()
			after := rest(t, n, before)
			t.Logf("p99 of others %v, meanwhile %v; meanwhile %v, afterwards %v", quiet, busy, during, after)
			if wrong != nil {
				t.Error(wrong)
			}
			if most := max(2*quiet, leastTail(t)); busy > most {
				t.Errorf("others waited %v (p99), without the unauthenticated client %v", busy, quiet)
			}
		})
	}
	if strings.Contains(n.Log.String(), "panic") {
		t.Error("the node panicked")
	}
}

// One node of three is there and says nothing: keys of the others are decided as before.
func TestSilentPeerStallsNobody(t *testing.T) {
	length := process.Setting(t, "SIEGE", 10*time.Second)
	nodes := process.Cluster(t, 3, "")
	var keys []string
	for _, k := range keysOf("silent", 2000) {
		r, err := nodes[0].API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{patronsCheck(k)}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Decisions[0].Owner != nodes[2].Name {
			keys = append(keys, k)
		}
	}
	quiet := p99(t, patrons(within(t, length/2), nodes[0], keys))
	nodes[2].Signal(syscall.SIGSTOP)
	defer nodes[2].Signal(syscall.SIGCONT)
	// Its own keys are asked for all the while, by others.
	ctx := within(t, length)
	var others sync.WaitGroup
	for i := range 64 {
		others.Go(func() {
			for j := 0; ctx.Err() == nil; j++ {
				c, cancel := context.WithTimeout(ctx, time.Second)
				nodes[0].API().Check(c, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{patronsCheck(fmt.Sprintf("other-%d-%d", i, j))}})
				cancel()
				pause.For(ctx, 100*time.Millisecond)
			}
		})
	}
	busy := p99(t, patrons(ctx, nodes[0], keys))
	others.Wait()
	t.Logf("p99 of others %v, meanwhile %v", quiet, busy)
	if most := max(2*quiet, leastTail(t)); busy > most {
		t.Errorf("keys of living nodes waited %v (p99), before %v", busy, quiet)
	}
}

// leastTail is a p99 that is never too long: two cores have the unauthenticated clients, the nodes and the others. SLUICE_E2E_GAP is for
// machines that do other things too.
func leastTail(t *testing.T) time.Duration {
	return max(40*time.Millisecond, process.Setting(t, "SLUICE_E2E_GAP", 0))
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func keysOf(prefix string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("%s-%d", prefix, i))
	}
	return keys
}

func patronsCheck(key string) *sluicev1.Check {
	return &sluicev1.Check{
		Domain: "patrons", Descriptor_: process.Entries("key", key),
		Limits: []*sluicev1.Limit{{Count: 1_000_000, PeriodNs: int64(time.Hour)}},
	}
}

// patrons ask a node gently until ctx ends, and want every answer. The result is how long each took.
func patrons(ctx context.Context, n *process.Node, keys []string) (took []time.Duration) {
	n.T.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 4 {
		conn := n.Dial()
		defer conn.Close()
		api := sluicev1.NewRateLimitServiceClient(conn)
		all.Go(func() {
			tick := time.NewTicker(8 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				began := time.Now()
				each, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				_, err := api.Check(each, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{patronsCheck(keys[rand.IntN(len(keys))])}})
				cancel()
				if err != nil {
					n.T.Errorf("a check of others failed: %v", err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return took
}

func p99(t *testing.T, took []time.Duration) time.Duration {
	t.Helper()
	if len(took) < 50 {
		t.Fatalf("%d checks are too few", len(took))
	}
	slices.Sort(took)
	return took[len(took)*99/100].Round(10 * time.Microsecond)
}

// rest waits until nothing of unauthenticated clients is left of what was before, and returns what there is.
func rest(t *testing.T, n *process.Node, before process.Vitals) (now process.Vitals) {
	t.Helper()
	process.Eventually(t, 90*time.Second, "nothing is left of the unauthenticated client", func() error {
		now = n.Vitals()
		for name, spare := range map[string]float64{"go_goroutines": 30, "process_open_fds": 15, "sluice_connections": 10} {
			if before != nil && now[name] > before[name]+spare {
				return fmt.Errorf("%s is %.0f, before %.0f", name, now[name], before[name])
			}
		}
		if before != nil && now.Resident() > before.Resident()+150 {
			return fmt.Errorf("%.0f MiB are resident, before %.0f", now.Resident(), before.Resident())
		}
		return nil
	})
	return now
}

// afar connects from an address that nobody else has.
var afar = net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 250, 0, 1)}, Timeout: 5 * time.Second}

func garbage(ctx context.Context, n *process.Node) error {
	packets, err := net.Dial("udp", n.Gossip)
	if err != nil {
		return err
	}
	defer packets.Close()
	noise := make([]byte, 1200)
	for i := 0; ctx.Err() == nil; i++ {
		for j := range noise {
			noise[j] = byte(rand.Uint32())
		}
		noise[0] = byte(i) // every kind of message
		packets.Write(noise)
		for port, addr := range n.Ports() {
			c, err := afar.DialContext(ctx, "tcp", addr)
			if err != nil {
				if end, _ := ctx.Deadline(); !time.Now().Before(end) {
					break // it was given no time
				}
				return fmt.Errorf("%s: %w", port, err)
			}
			c.Write(noise)
			if i%2 == 0 {
				c.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
		}
		if i == 100 { // seldom: to look is much more work for the node than all this noise
			if v, err := n.Measure(); err == nil && v["sluice_gossip_malformed_total"] == 0 {
				return errors.New("noise at the gossip port is not counted")
			}
		}
		pause.For(ctx, 10*time.Millisecond)
	}
	return nil
}

// openings are how a conversation with each port begins.
var openings = map[string]string{
	"grpc":   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x10\x00\x01\x05\x00\x00\x00\x01",
	"http":   "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{\"checks\": [",
	"peer":   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x10\x00\x01\x05\x00\x00\x00\x01",
	"gossip": "\x06\x83\xa5Nodes\x02\xacUserStateLen\x00\xa4Join\xc3\x85",
}

// drip says a byte at a time on 50 connections to each port.
func drip(ctx context.Context, n *process.Node) error {
	var all sync.WaitGroup
	var dialled atomic.Int64
	for port, addr := range n.Ports() {
		for range 50 {
			all.Go(func() {
				for ctx.Err() == nil {
					c, err := afar.DialContext(ctx, "tcp", addr)
					if err != nil {
						return
					}
					dialled.Add(1)
					for i := range openings[port] {
						if _, err := c.Write([]byte(openings[port][i : i+1])); err != nil || !pause.For(ctx, 500*time.Millisecond) {
							break
						}
					}
					c.Close()
				}
			})
		}
	}
	all.Wait()
	return nil
}

// idle opens connections from one address and says nothing.
func idle(ctx context.Context, n *process.Node) error { return crowd(ctx, n, "") }

// idleHTTP2 says hello and then nothing.
func idleHTTP2(ctx context.Context, n *process.Node) error {
	return crowd(ctx, n, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
}

func crowd(ctx context.Context, n *process.Node, hello string) error {
	const many, most = 5000, 1024
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	before := n.Vitals()
	for i := range many {
		if ctx.Err() != nil {
			break
		}
		c, err := afar.DialContext(ctx, "tcp", n.GRPC)
		if err != nil {
			continue
		}
		open = append(open, c)
		if _, err := io.WriteString(c, hello); err != nil {
			continue // turned away already
		}
		if i%50 == 0 {
			pause.For(ctx, 10*time.Millisecond)
		}
	}
	v, err := n.Measure()
	if err != nil {
		return err
	}
	if more := v["sluice_connections"] - before["sluice_connections"]; more > most+20 {
		return fmt.Errorf("%.0f connections of one address were let in", more)
	}
	if rejected := v["sluice_connections_rejected_total"] - before["sluice_connections_rejected_total"]; len(open) > 2*most && rejected < float64(len(open)-most-100) {
		return fmt.Errorf("%.0f of %d connections were rejected", rejected, len(open))
	}
	<-ctx.Done()
	return nil
}

// huge sends messages of 64 MiB to every port.
func huge(ctx context.Context, n *process.Node) error {
	message := make([]byte, 64<<20)
	conns := map[string]*grpc.ClientConn{}
	for port, addr := range map[string]string{"grpc": n.GRPC, "peer": n.Peer} {
		c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(process.BytesCodec{}), grpc.MaxCallSendMsgSize(1<<30)))
		if err != nil {
			return err
		}
		defer c.Close()
		conns[port] = c
	}
	for ctx.Err() == nil {
		var answer []byte
		if err := conns["grpc"].Invoke(ctx, sluicev1.RateLimitService_Check_FullMethodName, &message, &answer); status.Code(err) != codes.ResourceExhausted && ctx.Err() == nil {
			return fmt.Errorf("gRPC: %w", err)
		}
		stream, err := conns["peer"].NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/peer.v1.PeerService/Exchange")
		if err == nil {
			stream.SendMsg(&message)
			if err := stream.RecvMsg(&answer); err == nil && ctx.Err() == nil {
				return errors.New("peer port: 64 MiB were answered")
			}
		}
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+n.HTTP+"/v1/check", bytes.NewReader(message))
		if err != nil {
			return err
		}
		if r, err := http.DefaultClient.Do(req); err == nil {
			r.Body.Close()
			if r.StatusCode != http.StatusRequestEntityTooLarge {
				return fmt.Errorf("HTTP: %d", r.StatusCode)
			}
		}
		c, err := afar.DialContext(ctx, "tcp", n.Gossip)
		if err == nil {
			io.WriteString(c, openings["gossip"])
			if sent, err := c.Write(message); err == nil && ctx.Err() == nil {
				c.Close()
				return fmt.Errorf("gossip: %d bytes were taken", sent)
			}
			c.Close()
		}
		pause.For(ctx, 300*time.Millisecond)
	}
	return nil
}

// bombs sends a few KiB that would become a GiB.
func bombs(ctx context.Context, n *process.Node) error {
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	block := make([]byte, 1<<20)
	for range 256 {
		w.Write(block)
	}
	w.Close()
	client := &http.Client{Transport: &http.Transport{Protocols: h2c(), DisableCompression: true}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		// A gRPC message with the flag of compression.
		frame := append([]byte{1, byte(bomb.Len() >> 24), byte(bomb.Len() >> 16), byte(bomb.Len() >> 8), byte(bomb.Len())}, bomb.Bytes()...)
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+n.GRPC+sluicev1.RateLimitService_Check_FullMethodName, bytes.NewReader(frame))
		req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Grpc-Encoding": {"gzip"}}
		if r, err := client.Do(req); err == nil {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			if got := r.Header.Get("Grpc-Status") + r.Trailer.Get("Grpc-Status"); got != "8" && ctx.Err() == nil { // RESOURCE_EXHAUSTED
				return fmt.Errorf("a compressed message: status %q", got)
			}
		}
		req, _ = http.NewRequestWithContext(ctx, "POST", "http://"+n.HTTP+"/v1/check", bytes.NewReader(bomb.Bytes()))
		req.Header.Set("Content-Encoding", "gzip")
		if r, err := http.DefaultClient.Do(req); err == nil {
			r.Body.Close()
			if r.StatusCode != http.StatusBadRequest {
				return fmt.Errorf("a compressed body: %d", r.StatusCode)
			}
		}
		pause.For(ctx, 100*time.Millisecond)
	}
	return nil
}

func h2c() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// reset opens calls and cancels them at once.
func reset(ctx context.Context, n *process.Node) error {
	c, err := grpc.NewClient(n.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	for ctx.Err() == nil {
		for range 20 {
			one, cancel := context.WithCancel(ctx)
			c.NewStream(one, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, sluicev1.RateLimitService_CheckStream_FullMethodName)
			cancel()
		}
		pause.For(ctx, 20*time.Millisecond)
	}
	return nil
}

// unread asks on streams and does not read what is answered.
func unread(ctx context.Context, n *process.Node) error {
	var all sync.WaitGroup
	for i := range 10 {
		c, err := grpc.NewClient(n.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(64<<10))
		if err != nil {
			return err
		}
		defer c.Close()
		stream, err := sluicev1.NewRateLimitServiceClient(c).CheckStream(ctx)
		if err != nil {
			return err
		}
		q := &sluicev1.CheckRequest{}
		for j := range 500 {
			q.Checks = append(q.Checks, patronsCheck(fmt.Sprintf("unread-%d-%d", i, j)))
		}
		all.Go(func() {
			for ctx.Err() == nil && stream.Send(q) == nil { // until flow control stops it
				pause.For(ctx, 200*time.Millisecond)
			}
		})
	}
	all.Wait()
	return nil
}

// halves begins messages of 4 MiB on one connection to each port of gRPC, and sends all of them but the last byte.
func halves(ctx context.Context, n *process.Node) error {
	before := n.Vitals()
	var all sync.WaitGroup
	for addr, method := range map[string]string{n.GRPC: sluicev1.RateLimitService_Check_FullMethodName, n.Peer: "/peer.v1.PeerService/Exchange"} {
		all.Go(func() { begin(ctx, addr, nil, 250, method) })
	}
	most := before.Resident()
	for pause.For(ctx, 100*time.Millisecond) {
		if v, err := n.Measure(); err == nil {
			most = max(most, v.Resident())
		}
	}
	all.Wait()
	if most > before.Resident()+64 {
		return fmt.Errorf("%.0f MiB were resident, before %.0f", most, before.Resident())
	}
	return nil
}

// begin begins so many messages of 4 MiB on one connection at a time until ctx ends. TLS is for nil plain.
func begin(ctx context.Context, addr string, secure *tls.Config, calls int, method string) {
	for ctx.Err() == nil {
		c, err := afar.DialContext(ctx, "tcp", addr)
		if err != nil {
			return
		}
		if secure != nil {
			c = tls.Client(c, secure)
		}
		if r, err := rawh2.New(c); err == nil {
			r.Flood(ctx, calls, 4<<20, method)
		}
		pause.For(ctx, 500*time.Millisecond)
		c.Close()
	}
}

// TestOneConnection: one connection without a token begins messages on 4,096 streams, for SIEGE in all. The process grows by at most
// 64 MiB, and others, whom it is measured against in turn, wait at most twice as long.
func TestOneConnection(t *testing.T) {
	all := process.Setting(t, "SIEGE", 10*time.Second)
	turns := max(1, min(6, all/(5*time.Second))) // what the connection of the turn before held is collected by then
	length := all / turns
	for name, c := range map[string]struct{ callers, secure bool }{
		"open": {}, "callers": {callers: true}, "TLS": {secure: true}, "TLS and callers": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := process.NewVault(t)
			config := process.Config{Name: "pod-1"}
			var secure *tls.Config
			if c.secure {
				v.Equip(v.Before, time.Hour, config.Name)
				config.Args = []string{"--tls-cert", filepath.Join(v.Dir, config.Name+".crt"), "--tls-key", filepath.Join(v.Dir, config.Name+".key")}
				config.TLS = &tls.Config{RootCAs: v.Trust, ServerName: "sluice"}
				secure = config.TLS.Clone()
				secure.NextProtos = []string{"h2"}
			}
			if c.callers {
				path, digest := v.Make("others")
				v.Write("callers.yaml", fmt.Sprintf("callers: [{name: others, tokens: [%s], grants: [{domains: [patrons], verbs: [check]}]}]", digest))
				config.Args, config.Token = append(config.Args, "--callers", filepath.Join(v.Dir, "callers.yaml")), path
			}
			n := process.Launch(t, config)
			keys := keysOf("patron", 1000)
			process.Eventually(t, 20*time.Second, "it answers", func() error {
				_, err := n.API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{patronsCheck(keys[0])}})
				return err
			})
			var quiet, busy []time.Duration
			var before, most int
			for turn := range turns {
				quiet = append(quiet, patrons(within(t, length), n, keys)...)
				if turn == 0 {
					before = n.Memory("VmRSS")
				}
				ctx := within(t, length)
				var attack sync.WaitGroup
				attack.Go(func() { begin(ctx, n.GRPC, secure, 4096, sluicev1.RateLimitService_Check_FullMethodName) })
				busy = append(busy, patrons(ctx, n, keys)...)
				attack.Wait()
			}
			most = n.Memory("VmHWM")
			with, without := p99(t, busy), p99(t, quiet)
			t.Logf("%v in all: %d MiB more; p99 of others %v, without it %v (%d and %d checks)", turns*length, most-before, with, without, len(busy), len(quiet))
			if most > before+64 {
				t.Errorf("%d MiB were resident, before %d", most, before)
			}
			if with > max(2*without, leastTail(t)) {
				t.Errorf("others waited %v (p99), without it %v", with, without)
			}
		})
	}
}
