package process

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// ResetPeak lets the most memory of the process begin anew.
func (n *Node) ResetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.Cmd.Process.Pid), []byte("5"), 0); err != nil {
		t.Skipf("this system does not forget the most memory of a process: %v", err)
	}
}

// Lines returns the lines of a metric that are not 0.
func (n *Node) Lines(metric string) (list []string) {
	_, text, _ := n.Get("/metrics")
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, metric) && !strings.HasSuffix(line, " 0") {
			list = append(list, line)
		}
	}
	return list
}

// Same starts name again at the addresses that n had, with the flags that n had and more.
func (n *Node) Same(c Config) *Node {
	n.T.Helper()
	c.Name, c.Host = n.Name, n.Host
	for _, a := range []struct{ flag, addr string }{
		{"--grpc-port", n.GRPC}, {"--http-port", n.HTTP}, {"--peer-port", n.Peer}, {"--gossip-port", n.Gossip},
	} {
		_, port, err := net.SplitHostPort(a.addr)
		if err != nil {
			n.T.Fatal(err)
		}
		c.Args = append(c.Args, a.flag, port)
	}
	next := Launch(n.T, c)
	next.GRPC, next.HTTP, next.Peer, next.Gossip = n.GRPC, n.HTTP, n.Peer, n.Gossip
	return next
}

// Ports are where an unauthenticated client can connect.
func (n *Node) Ports() map[string]string {
	return map[string]string{"grpc": n.GRPC, "http": n.HTTP, "peer": n.Peer, "gossip": n.Gossip}
}

// Memory is a line of the process's status, in MiB.
func (n *Node) Memory(line string) int {
	n.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Cmd.Process.Pid))
	if err != nil {
		n.T.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), line+":")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		n.T.Fatal(err)
	}
	return kib / 1024
}

// Metric returns the value of a metric. One with labels is 0 until there is something to count.
func (n *Node) Metric(name string) float64 {
	n.T.Helper()
	_, body, err := n.Get("/metrics")
	if err != nil {
		n.T.Fatal(err)
	}
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				n.T.Fatal(err)
			}
			return value
		}
	}
	family, _, labels := strings.Cut(name, "{")
	if !labels || !strings.Contains(body, "# TYPE "+family+" ") {
		n.T.Fatalf("%s has no metric %s", n.Name, name)
	}
	return 0
}

// Total returns the sum of a metric over nodes.
func Total(nodes []*Node, metric string) (sum float64) {
	for _, n := range nodes {
		sum += n.Metric(metric)
	}
	return sum
}

// Spend asks n for one unit of key, or looks at it, under 100 per 100 s, which is one a second.
func (n *Node) Spend(verb sluicev1.Verb, key string) *sluicev1.Decision {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := n.API().Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
		Domain: "e2e", Descriptor_: []*sluicev1.Entry{{Key: "key", Value: key}}, Verb: verb,
		Limits: []*sluicev1.Limit{{Algorithm: sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET, Count: 100, PeriodNs: int64(100 * time.Second)}},
	}}})
	if err != nil {
		n.T.Fatal(err)
	}
	return resp.Decisions[0]
}

// Vitals are a node's metrics by name, labels summed up.
type Vitals map[string]float64

// Measure reads n's metrics.
func (n *Node) Measure() (Vitals, error) {
	return Measure(&http.Client{Timeout: 10 * time.Second}, "http://"+n.HTTP+"/metrics")
}

// Measure reads the metrics at a URL.
func Measure(client *http.Client, url string) (Vitals, error) {
	status, body, err := getBy(client, url)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("metrics: %d", status)
	}
	v := Vitals{}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		f, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", line, err)
		}
		name, _, _ := strings.Cut(line[:at], "{")
		v[name] += f
	}
	return v, nil
}

// Vitals are n's metrics now.
func (n *Node) Vitals() Vitals {
	n.T.Helper()
	v, err := n.Measure()
	if err != nil {
		n.T.Fatalf("%s: %v", n.Name, err)
	}
	return v
}

const Mebibyte = 1 << 20

func (v Vitals) Resident() float64 { return v["process_resident_memory_bytes"] / Mebibyte }

func (v Vitals) String() string {
	return fmt.Sprintf("%.0f MiB resident, %.0f goroutines, %.0f descriptors, %.0f connections",
		v.Resident(), v["go_goroutines"], v["process_open_fds"], v["sluice_connections"])
}

// Setting is a duration out of the environment.
func Setting(t *testing.T, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}
