// Package process runs sluice as its users do: real processes of the built binary on loopback
// addresses, asked over their own ports. The tests are in folders beside it: e2e for each commit,
// the scenarios of minutes and hours in change, hostile, load, network and faults, which `go run
// ./test/scenario` runs.
package process

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

// Quiet is how long after the last change all nodes must agree.
const Quiet = 5 * time.Second

// Binary is the program under test, built once by Main. With
// SLUICE_E2E_RACE=1 it carries the race detector.
var Binary string

// longEnv makes tests run that take minutes to hours.
const longEnv = "SLUICE_LONG"

// Long reports whether make test-long or a scenario runs, beside no other work.
func Long() bool { return os.Getenv(longEnv) != "" }

// OnlyLong leaves a test to make test-long and the scenarios.
func OnlyLong(t *testing.T) {
	t.Helper()
	if !Long() {
		t.Skip("make test-long runs it, or " + longEnv + "=1")
	}
}

// Scenarios is the TestMain of a package of scenarios, which run only by go run ./test/scenario, or
// with SLUICE_LONG=1.
func Scenarios(m *testing.M) {
	if !Long() {
		fmt.Println("skipped: scenarios run by go run ./test/scenario, or with " + longEnv + "=1")
		return
	}
	Main(m)
}

// Main is the TestMain of packages that use Binary.
func Main(m *testing.M) {
	BeSlotCallers()
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	Binary = filepath.Join(dir, "sluice")
	args := []string{"build", "-o", Binary}
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

// Node is one running process.
type Node struct {
	T                        *testing.T
	Name                     string
	Host                     string
	GRPC, HTTP, Peer, Gossip string
	Cmd                      *exec.Cmd
	Log                      *LogBuffer
	Done                     chan struct{} // closed when the process has ended
	Conn                     *grpc.ClientConn
	TLS                      *tls.Config // of its callers, nil for plain
	Token                    string      // file with the token that the test shows, if any
}

// Config says how to start a node. Ports are free ones on host (one of its own if empty). {name} in
// args is the node's name.
type Config struct {
	Name  string
	Host  string
	Join  []string
	Rules string
	Args  []string
	// tls is how to ask the node, nil for plain.
	TLS *tls.Config
	// token is the file with the token to ask it with, if any.
	Token string
	// binary is the program to run, if not the one under test.
	Binary string
	// descriptors is how many files the process may open, 0 for as many as the test.
	Descriptors int
	// output is its stdout and stderr instead of the test's log, if not nil.
	Output *os.File
	// env is what it has in its environment besides the test's.
	Env []string
}

// Start runs `sluice serve` and waits until the node is ready. The process is
// ended with the test if it still runs then.
func Start(t *testing.T, c Config) *Node {
	t.Helper()
	n := Launch(t, c)
	n.WaitReady()
	return n
}

// Launch is start without waiting.
func Launch(t *testing.T, c Config) *Node {
	t.Helper()
	if c.Host == "" {
		c.Host = OwnHost()
	}
	ports := FreePorts(t, c.Host)
	addr := func(i int) string { return net.JoinHostPort(c.Host, strconv.Itoa(ports[i])) }
	n := &Node{
		T: t, Name: c.Name, Host: c.Host, GRPC: addr(0), HTTP: addr(1), Peer: addr(2), Gossip: addr(3),
		Log: &LogBuffer{}, Done: make(chan struct{}), TLS: c.TLS, Token: c.Token,
	}
	args := []string{"serve", "--name", c.Name, "--bind", c.Host,
		"--grpc-port", strconv.Itoa(ports[0]), "--http-port", strconv.Itoa(ports[1]),
		"--peer-port", strconv.Itoa(ports[2]), "--gossip-port", strconv.Itoa(ports[3])}
	if len(c.Join) > 0 {
		args = append(args, "--join", strings.Join(c.Join, ","))
	}
	if c.Rules != "" {
		args = append(args, "--rules", c.Rules)
	}
	for _, arg := range c.Args {
		args = append(args, strings.ReplaceAll(arg, "{name}", c.Name))
	}
	n.Cmd = exec.Command(cmp.Or(c.Binary, Binary), args...)
	if c.Descriptors > 0 {
		limited := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, c.Descriptors)
		n.Cmd = exec.Command("sh", append([]string{"-c", limited, n.Cmd.Path}, args...)...)
	}
	n.Cmd.Stdout, n.Cmd.Stderr = n.Log, n.Log
	if c.Output != nil {
		n.Cmd.Stdout, n.Cmd.Stderr = c.Output, c.Output
	}
	n.Cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66"), c.Env...)
	if err := n.Cmd.Start(); err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	go func() {
		n.Cmd.Wait()
		close(n.Done)
	}()
	t.Cleanup(func() {
		n.Kill()
		if n.Conn != nil {
			n.Conn.Close()
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", n.Name, n.Log.Tail(6000))
		}
		if strings.Contains(n.Log.String(), "DATA RACE") {
			t.Errorf("%s: the race detector found a race:\n%s", n.Name, n.Log.String())
		}
	})
	return n
}

// apiClient is a client of the gRPC API, of callers and of operators.
type apiClient struct {
	sluicev1.RateLimitServiceClient
	adminv1alpha1.AdminServiceClient
}

func NewAPI(conn *grpc.ClientConn) apiClient {
	return apiClient{sluicev1.NewRateLimitServiceClient(conn), adminv1alpha1.NewAdminServiceClient(conn)}
}

// API returns a client of the node's gRPC port.
func (n *Node) API() apiClient {
	n.T.Helper()
	if n.Conn == nil {
		n.Conn = n.Dial()
	}
	return NewAPI(n.Conn)
}

// Dial returns another connection to the gRPC port, which the caller closes.
func (n *Node) Dial() *grpc.ClientConn {
	n.T.Helper()
	creds := insecure.NewCredentials()
	if n.TLS != nil {
		creds = credentials.NewTLS(n.TLS)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(creds)}
	if n.Token != "" {
		options = append(options, grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(sluice.TokenFile(n.Token), false)))
	}
	conn, err := grpc.NewClient(n.GRPC, options...)
	if err != nil {
		n.T.Fatal(err)
	}
	return conn
}

// Way returns the way to the node as its operator.
func (n *Node) Way() operators.Way {
	n.T.Helper()
	way, ok := operators.Find("", n.GRPC)
	if !ok {
		n.T.Fatalf("%s: no operators' socket of %s is found", n.Name, n.GRPC)
	}
	return way
}

// Operator is api for calls of operators.
func (n *Node) Operator() apiClient {
	n.T.Helper()
	conn := n.OperatorConn()
	n.T.Cleanup(func() { conn.Close() })
	return NewAPI(conn)
}

// OperatorConn returns a connection to the operators' socket, which the caller closes.
func (n *Node) OperatorConn() *grpc.ClientConn {
	n.T.Helper()
	way := n.Way()
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return way.Dial(ctx) }))
	if err != nil {
		n.T.Fatal(err)
	}
	return conn
}

func (n *Node) Alive() bool {
	select {
	case <-n.Done:
		return false
	default:
		return true
	}
}

func (n *Node) Signal(s os.Signal) {
	n.T.Helper()
	if err := n.Cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.T.Fatalf("%s: signal %v: %v", n.Name, s, err)
	}
}

// Kill ends the process at once, as a crash would, and waits for its end.
func (n *Node) Kill() {
	if n.Alive() {
		n.Cmd.Process.Signal(syscall.SIGCONT)
		n.Cmd.Process.Kill()
	}
	<-n.Done
}

// Stop sends s and returns how long the process took to end, and its exit code.
func (n *Node) Stop(s os.Signal) (time.Duration, int) {
	n.T.Helper()
	began := time.Now()
	n.Signal(s)
	select {
	case <-n.Done:
	case <-time.After(40 * time.Second): // --handover-timeout is 25 s, and others follow
		n.T.Fatalf("%s did not end within 40 s of %v", n.Name, s)
	}
	return time.Since(began), n.Cmd.ProcessState.ExitCode()
}

func (n *Node) WaitReady() {
	n.T.Helper()
	Eventually(n.T, time.Minute, n.Name+" is ready", func() error {
		if !n.Alive() {
			n.T.Fatalf("%s ended while starting:\n%s", n.Name, n.Log.String())
		}
		status, body, err := n.Get("/readyz")
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			return fmt.Errorf("readyz: %d %s", status, body)
		}
		return nil
	})
}

// Get asks the node's HTTP port.
func (n *Node) Get(path string) (int, string, error) {
	if n.TLS == nil {
		return Get("http://" + n.HTTP + path)
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: n.TLS, DisableKeepAlives: true}}
	return getBy(&client, "https://"+n.HTTP+path)
}

func Get(url string) (int, string, error) {
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

// Cluster starts n nodes called pod-1, pod-2 … that join each other, and waits
// until all agree.
func Cluster(t *testing.T, n int, rules string, args ...string) []*Node {
	t.Helper()
	return ClusterOf(t, n, Config{Rules: rules, Args: args})
}

// ClusterOf is cluster of nodes that are alike but for their names and whom they join.
func ClusterOf(t *testing.T, n int, c Config) []*Node {
	t.Helper()
	c.Name = "pod-1"
	nodes := []*Node{Start(t, c)}
	for i := 2; i <= n; i++ {
		c.Name, c.Join = fmt.Sprintf("pod-%d", i), []string{nodes[0].Gossip}
		nodes = append(nodes, Launch(t, c))
	}
	for _, n := range nodes {
		n.WaitReady()
	}
	WaitAgreed(t, nodes, 10*time.Second)
	return nodes
}

// Target is the target of a client of nodes: their gRPC addresses.
func Target(nodes []*Node) string {
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.GRPC)
	}
	return strings.Join(addrs, ",")
}

// Pauses returns how often the nodes had no processor for a second or more, as they log themselves.
func Pauses(nodes []*Node) (count int) {
	for _, n := range nodes {
		count += strings.Count(n.Log.String(), "this process did not run for ")
	}
	return count
}

// WaitAgreed waits until every node lists exactly nodes as serving, with one
// ring table, and returns how long that took and the answer of the first node.
// within counts from the end of faults: again when a node has logged that it did not run.
func WaitAgreed(t *testing.T, nodes []*Node, within time.Duration) (time.Duration, *adminv1alpha1.MembersResponse) {
	t.Helper()
	want := map[string]string{} // name → gRPC address
	for _, n := range nodes {
		want[n.Name] = n.GRPC
	}
	var first *adminv1alpha1.MembersResponse
	began := time.Now()
	agreed := func() error {
		first = nil
		for _, n := range nodes {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			r, err := n.API().Members(ctx, &adminv1alpha1.MembersRequest{})
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
			serving := 0
			for _, m := range r.Members {
				if m.State == "serving" {
					serving++
					if want[m.Name] != m.GrpcAddress {
						return fmt.Errorf("%s lists %s at %s", n.Name, m.Name, m.GrpcAddress)
					}
				}
			}
			if serving != len(want) {
				return fmt.Errorf("%s lists %d serving members, want %d", n.Name, serving, len(want))
			}
			if first == nil {
				first = r
			}
			if r.Ring != first.Ring {
				return fmt.Errorf("%s has ring %s, %s has %s", n.Name, r.Ring, nodes[0].Name, first.Ring)
			}
		}
		return nil
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for seen, last := Pauses(nodes), began; ; <-tick.C {
		err := agreed()
		if err == nil {
			return time.Since(began), first
		}
		if p := Pauses(nodes); p > seen {
			seen, last = p, time.Now()
		}
		if time.Since(last) > within {
			t.Fatalf("not within %v: %d nodes agree on members and ring: %v", within, len(nodes), err)
		}
	}
}

// Eventually polls until f returns nil and fails the test with f's last error
// when that takes longer than within.
func Eventually(t *testing.T, within time.Duration, what string, f func() error) {
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

// OwnHost returns a loopback address that no other process of these tests has, where loopback
// is a whole network. What connects has 127.0.0.1 as its own address, so it cannot
// come upon the port of a node that is about to listen.
func OwnHost() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	n := hosts.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()%128, n/250%250, n%250+1)
}

// FreePorts returns four ports on host that were free for TCP and UDP just now.
func FreePorts(t *testing.T, host string) [4]int {
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

// LogBuffer keeps what a process prints.
type LogBuffer struct {
	mu struct {
		sync.Mutex
		buf bytes.Buffer
	}
}

func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.buf.Write(p)
}

func (l *LogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.buf.String()
}

func (l *LogBuffer) Tail(n int) string {
	s := l.String()
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// WaitLog waits until the process has printed text.
func (n *Node) WaitLog(text string, within time.Duration) {
	n.T.Helper()
	Eventually(n.T, within, n.Name+" logs "+strconv.Quote(text), func() error {
		if strings.Contains(n.Log.String(), text) {
			return nil
		}
		return errors.New("not yet")
	})
}

// AllFree reports whether TCP ports base+offsets can be listened on.
func AllFree(base int, offsets ...int) bool {
	for _, o := range offsets {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+o)))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// ShiftingBinary builds a binary whose clock is ahead by SLUICE_CLOCK_SHIFT.
func ShiftingBinary(t *testing.T) string {
	t.Helper()
	shifting := filepath.Join(t.TempDir(), "sluice")
	build := exec.Command("go", "build", "-tags", "clockshift", "-o", shifting, "github.com/sluicecluster/sluice/cmd/sluice")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building with clocks that are off: %v\n%s", err, out)
	}
	return shifting
}
