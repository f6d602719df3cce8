package node

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestConsole: a node has a console unless it is told not to, and who watches does not keep it from stopping.
func TestConsole(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.Admin.Addr, c.Admin.Anywhere = "127.0.0.1:0", true
	n := startNode(t, c)
	if res, _ := send(t, n.listen.http.Addr(), "GET", "/console", ""); res.StatusCode != http.StatusOK || res.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("the page: %v", res)
	}
	watching, err := http.NewRequestWithContext(t.Context(), "GET", "http://localhost/console/api/watch", nil)
	do(t, err)
	socket := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", n.operators.place.Socket())
	}}
	t.Cleanup(socket.CloseIdleConnections)
	res, err := socket.RoundTrip(watching)
	do(t, err)
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	var events []string
	for len(events) < 3 && lines.Scan() {
		if e, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			events = append(events, e)
		} else if data := lines.Text(); len(events) == 2 && strings.HasPrefix(data, "data: ") &&
			(!strings.Contains(data, `"may_decide":true`) || !strings.Contains(data, `"severity":"notice","text":"n1: --admin-anywhere: `)) {
			t.Errorf("state: %s", data)
		}
	}
	if got := strings.Join(events, " "); got != "history state top" {
		t.Errorf("events %q, %v", got, lines.Err())
	}
	n.config.ShutdownTimeout = time.Hour
	if n.drain(); !n.draining.Load() { // as when it is stopped
		t.Error("it drains, and its APIs do not know")
	}
	if lines.Scan(); lines.Err() != nil {
		for lines.Scan() {
		}
		t.Errorf("the stream did not end in order: %v", lines.Err())
	}

	s := testConfig(t)
	s.Console = false
	off := startNode(t, s)
	for _, path := range []string{"/console", "/console/api/watch", "/console/api/rules"} {
		if status, _ := off.get(t, path); status != http.StatusNotFound {
			t.Errorf("%s with --console=false: %d", path, status)
		}
	}
}
