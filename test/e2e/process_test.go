// Package e2e tests sluice as its users meet it: real processes of the built
// binary on loopback addresses, asked over their own ports.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/operators"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// binary is the program under test, built once by TestMain. With
// SLUICE_E2E_RACE=1 it carries the race detector.
var binary string

// onlyLong leaves a test to make test-long, without -short.
func onlyLong(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-long runs it")
	}
}

func TestMain(m *testing.M) {
	if args := os.Getenv(slotCallersEnv); args != "" {
		slotCallers(args)
		return
	}
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "sluice")
	args := []string{"build", "-o", binary}
	if os.Getenv("SLUICE_E2E_RACE") == "1" {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/sluicecluster/sluice/cmd/sluice")...)
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the binary:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// node is one running process.
type node struct {
	t                        *testing.T
	name                     string
	host                     string
	grpc, http, peer, gossip string
	cmd                      *exec.Cmd
	log                      *logBuffer
	done                     chan struct{} // closed when the process has ended
	conn                     *grpc.ClientConn
	tls                      *tls.Config // of whoever asks it, nil for plain
	token                    string      // file with the token that the test shows, if any
}

// nodeConfig says how to start a node. Ports are free ones on host (one of its own if empty). {name} in
// args is the node's name.
type nodeConfig struct {
	name  string
	host  string
	join  []string
	rules string
	args  []string
	// tls is how to ask the node, nil for plain.
	tls *tls.Config
	// token is the file with the token to ask it with, if any.
	token string
	// binary is the program to run, if not the one under test.
	binary string
	// descriptors is how many files the process may open, 0 for as many as the test.
	descriptors int
	// output is its stdout and stderr instead of the test's log, if not nil.
	output *os.File
	// env is what it has in its environment besides the test's.
	env []string
}

// start runs `sluice serve` and waits until the node is ready. The process is
// ended with the test if it still runs then.
func start(t *testing.T, c nodeConfig) *node {
	t.Helper()
	n := launch(t, c)
	n.waitReady()
	return n
}

// launch is start without waiting.
func launch(t *testing.T, c nodeConfig) *node {
	t.Helper()
	if c.host == "" {
		c.host = ownHost()
	}
	ports := freePorts(t, c.host)
	addr := func(i int) string { return net.JoinHostPort(c.host, strconv.Itoa(ports[i])) }
	n := &node{
		t: t, name: c.name, host: c.host, grpc: addr(0), http: addr(1), peer: addr(2), gossip: addr(3),
		log: &logBuffer{}, done: make(chan struct{}), tls: c.tls, token: c.token,
	}
	args := []string{"serve", "--name", c.name, "--bind", c.host,
		"--grpc-port", strconv.Itoa(ports[0]), "--http-port", strconv.Itoa(ports[1]),
		"--peer-port", strconv.Itoa(ports[2]), "--gossip-port", strconv.Itoa(ports[3])}
	if len(c.join) > 0 {
		args = append(args, "--join", strings.Join(c.join, ","))
	}
	if c.rules != "" {
		args = append(args, "--rules", c.rules)
	}
	for _, arg := range c.args {
		args = append(args, strings.ReplaceAll(arg, "{name}", c.name))
	}
	n.cmd = exec.Command(cmp.Or(c.binary, binary), args...)
	if c.descriptors > 0 {
		limited := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, c.descriptors)
		n.cmd = exec.Command("sh", append([]string{"-c", limited, n.cmd.Path}, args...)...)
	}
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if c.output != nil {
		n.cmd.Stdout, n.cmd.Stderr = c.output, c.output
	}
	n.cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66"), c.env...)
	if err := n.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	go func() {
		n.cmd.Wait()
		close(n.done)
	}()
	t.Cleanup(func() {
		n.kill()
		if n.conn != nil {
			n.conn.Close()
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", n.name, n.log.tail(6000))
		}
		if strings.Contains(n.log.String(), "DATA RACE") {
			t.Errorf("%s: the race detector found a race:\n%s", n.name, n.log.String())
		}
	})
	return n
}

// apiClient is a client of the gRPC API, of callers and of operators.
type apiClient struct {
	sluicev1.RateLimitServiceClient
	adminv1alpha1.AdminServiceClient
}

func newAPI(conn *grpc.ClientConn) apiClient {
	return apiClient{sluicev1.NewRateLimitServiceClient(conn), adminv1alpha1.NewAdminServiceClient(conn)}
}

// api returns a client of the node's gRPC port.
func (n *node) api() apiClient {
	n.t.Helper()
	if n.conn == nil {
		n.conn = n.dial()
	}
	return newAPI(n.conn)
}

// dial returns another connection to the gRPC port, which the caller closes.
func (n *node) dial() *grpc.ClientConn {
	n.t.Helper()
	creds := insecure.NewCredentials()
	if n.tls != nil {
		creds = credentials.NewTLS(n.tls)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(creds)}
	if n.token != "" {
		options = append(options, grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(sluice.TokenFile(n.token), false)))
	}
	conn, err := grpc.NewClient(n.grpc, options...)
	if err != nil {
		n.t.Fatal(err)
	}
	return conn
}

// way returns the way to the node as its operator.
func (n *node) way() operators.Way {
	n.t.Helper()
	way, ok := operators.Find("", n.grpc)
	if !ok {
		n.t.Fatalf("%s: no operators' socket of %s is found", n.name, n.grpc)
	}
	return way
}

// operator is api for calls of operators.
func (n *node) operator() apiClient {
	n.t.Helper()
	conn := n.operatorConn()
	n.t.Cleanup(func() { conn.Close() })
	return newAPI(conn)
}

// operatorConn returns a connection to the operators' socket, which the caller closes.
func (n *node) operatorConn() *grpc.ClientConn {
	n.t.Helper()
	way := n.way()
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return way.Dial(ctx) }))
	if err != nil {
		n.t.Fatal(err)
	}
	return conn
}

func (n *node) alive() bool {
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

func (n *node) signal(s os.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Fatalf("%s: signal %v: %v", n.name, s, err)
	}
}

// kill ends the process at once, as a crash would, and waits for its end.
func (n *node) kill() {
	if n.alive() {
		n.cmd.Process.Signal(syscall.SIGCONT)
		n.cmd.Process.Kill()
	}
	<-n.done
}

// stop sends s and returns how long the process took to end, and its exit code.
func (n *node) stop(s os.Signal) (time.Duration, int) {
	n.t.Helper()
	began := time.Now()
	n.signal(s)
	select {
	case <-n.done:
	case <-time.After(40 * time.Second): // --handover-timeout is 25 s, and others follow
		n.t.Fatalf("%s did not end within 40 s of %v", n.name, s)
	}
	return time.Since(began), n.cmd.ProcessState.ExitCode()
}

func (n *node) waitReady() {
	n.t.Helper()
	eventually(n.t, time.Minute, n.name+" is ready", func() error {
		if !n.alive() {
			n.t.Fatalf("%s ended while starting:\n%s", n.name, n.log.String())
		}
		status, body, err := n.get("/readyz")
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			return fmt.Errorf("readyz: %d %s", status, body)
		}
		return nil
	})
}

// get asks the node's HTTP port.
func (n *node) get(path string) (int, string, error) {
	if n.tls == nil {
		return get("http://" + n.http + path)
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: n.tls, DisableKeepAlives: true}}
	return getBy(&client, "https://"+n.http+path)
}

func get(url string) (int, string, error) {
	return getBy(&http.Client{Timeout: 10 * time.Second}, url)
}

func getBy(client *http.Client, url string) (int, string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// cluster starts n nodes called pod-1, pod-2 … that join each other, and waits
// until all agree.
func cluster(t *testing.T, n int, rules string, args ...string) []*node {
	t.Helper()
	return clusterOf(t, n, nodeConfig{rules: rules, args: args})
}

// clusterOf is cluster of nodes that are alike but for their names and whom they join.
func clusterOf(t *testing.T, n int, c nodeConfig) []*node {
	t.Helper()
	c.name = "pod-1"
	nodes := []*node{start(t, c)}
	for i := 2; i <= n; i++ {
		c.name, c.join = fmt.Sprintf("pod-%d", i), []string{nodes[0].gossip}
		nodes = append(nodes, launch(t, c))
	}
	for _, n := range nodes {
		n.waitReady()
	}
	waitAgreed(t, nodes, 10*time.Second)
	return nodes
}

// pauses returns how often the nodes had no processor for a second or more, as they log themselves.
func pauses(nodes []*node) (count int) {
	for _, n := range nodes {
		count += strings.Count(n.log.String(), "this process did not run for ")
	}
	return count
}

// waitAgreed waits until every node lists exactly nodes as serving, with one
// ring table, and returns how long that took and the answer of the first node.
// within counts from the end of faults: again when a node has logged that it did not run.
func waitAgreed(t *testing.T, nodes []*node, within time.Duration) (time.Duration, *adminv1alpha1.MembersResponse) {
	t.Helper()
	want := map[string]string{} // name → gRPC address
	for _, n := range nodes {
		want[n.name] = n.grpc
	}
	var first *adminv1alpha1.MembersResponse
	began := time.Now()
	agreed := func() error {
		first = nil
		for _, n := range nodes {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			r, err := n.api().Members(ctx, &adminv1alpha1.MembersRequest{})
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
			serving := 0
			for _, m := range r.Members {
				if m.State == "serving" {
					serving++
					if want[m.Name] != m.GrpcAddress {
						return fmt.Errorf("%s lists %s at %s", n.name, m.Name, m.GrpcAddress)
					}
				}
			}
			if serving != len(want) {
				return fmt.Errorf("%s lists %d serving members, want %d", n.name, serving, len(want))
			}
			if first == nil {
				first = r
			}
			if r.Ring != first.Ring {
				return fmt.Errorf("%s has ring %s, %s has %s", n.name, r.Ring, nodes[0].name, first.Ring)
			}
		}
		return nil
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for seen, last := pauses(nodes), began; ; <-tick.C {
		err := agreed()
		if err == nil {
			return time.Since(began), first
		}
		if p := pauses(nodes); p > seen {
			seen, last = p, time.Now()
		}
		if time.Since(last) > within {
			t.Fatalf("not within %v: %d nodes agree on members and ring: %v", within, len(nodes), err)
		}
	}
}

// eventually polls until f returns nil and fails the test with f's last error
// when that takes longer than within.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", within, what, err)
		}
		<-tick.C
	}
}

var hosts atomic.Uint32

// ownHost returns a loopback address that no other process of these tests has, where loopback
// is a whole network. What connects has 127.0.0.1 as its own address, so it cannot
// come upon the port of a node that is about to listen.
func ownHost() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	n := hosts.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()%128, n/250%250, n%250+1)
}

// freePorts returns four ports on host that were free for TCP and UDP just now.
func freePorts(t *testing.T, host string) [4]int {
	t.Helper()
	var ports [4]int
	for i := range ports {
		for attempt := 0; ; attempt++ {
			tcp, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Fatal(err)
			}
			defer tcp.Close()
			ports[i] = tcp.Addr().(*net.TCPAddr).Port
			udp, err := net.ListenPacket("udp", tcp.Addr().String())
			if err == nil {
				defer udp.Close()
				break
			}
			if attempt == 20 {
				t.Fatalf("no port is free for TCP and UDP on %s: %v", host, err)
			}
		}
	}
	return ports
}

// logBuffer keeps what a process prints.
type logBuffer struct {
	mu struct {
		sync.Mutex
		buf bytes.Buffer
	}
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.buf.String()
}

func (l *logBuffer) tail(n int) string {
	s := l.String()
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// waitLog waits until the process has printed text.
func (n *node) waitLog(text string, within time.Duration) {
	n.t.Helper()
	eventually(n.t, within, n.name+" logs "+strconv.Quote(text), func() error {
		if strings.Contains(n.log.String(), text) {
			return nil
		}
		return errors.New("not yet")
	})
}

// allFree reports whether TCP ports base+offsets can be listened on.
func allFree(base int, offsets ...int) bool {
	for _, o := range offsets {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+o)))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
