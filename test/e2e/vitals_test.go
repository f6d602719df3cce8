//go:build flood || hostile || soak

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// vitals are a node's metrics by name, labels summed up.
type vitals map[string]float64

// measure reads n's metrics.
func (n *node) measure() (vitals, error) {
	status, body, err := get("http://" + n.http + "/metrics")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("metrics: %d", status)
	}
	v := vitals{}
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

// vitals are n's metrics now.
func (n *node) vitals() vitals {
	n.t.Helper()
	v, err := n.measure()
	if err != nil {
		n.t.Fatalf("%s: %v", n.name, err)
	}
	return v
}

const mebibyte = 1 << 20

func (v vitals) resident() float64 { return v["process_resident_memory_bytes"] / mebibyte }

func (v vitals) String() string {
	return fmt.Sprintf("%.0f MiB resident, %.0f goroutines, %.0f descriptors, %.0f connections",
		v.resident(), v["go_goroutines"], v["process_open_fds"], v["sluice_connections"])
}

// setting is a duration out of the environment.
func setting(t *testing.T, name string, otherwise time.Duration) time.Duration {
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
