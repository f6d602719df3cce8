package main

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-project/sluice/internal/listen"
)

func TestNotice(t *testing.T) {
	var c notice
	begin := time.Unix(1000, 0)
	for _, step := range []struct {
		after time.Duration
		count uint64
		want  uint64
	}{
		{0, 0, 0},
		{5 * time.Second, 3, 3}, // the first is told at once
		{10 * time.Second, 10, 0},
		{64 * time.Second, 12, 0},
		{65 * time.Second, 20, 17}, // and the others once a minute
		{200 * time.Second, 20, 0},
		{205 * time.Second, 21, 1},
	} {
		if got := c.due(step.count, begin.Add(step.after)); got != step.want {
			t.Errorf("%d after %v: %d, want %d", step.count, step.after, got, step.want)
		}
	}
}

func TestPortNotice(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	var c portNotice
	now := time.Unix(1000, 0)
	c.look(log, portStats{"grpc", listen.Stats{Silent: 5}}, now)
	if text.Len() > 0 {
		t.Errorf("silent connections are logged: %s", &text)
	}
	c.look(log, portStats{"grpc", listen.Stats{Full: 2, Failed: 1}}, now)
	c.look(log, portStats{"grpc", listen.Stats{Full: 9, Crowded: 1, Failed: 1}}, now.Add(noticeEvery))
	for _, want := range []string{"full=2 of_one_address=0 accept_failed=1", "full=7 of_one_address=1 accept_failed=0"} {
		if !strings.Contains(text.String(), "port=grpc "+want) {
			t.Errorf("no %q in:\n%s", want, &text)
		}
	}
}

func TestOwnAddress(t *testing.T) {
	ip := func(text string) net.Addr {
		_, network, _ := net.ParseCIDR(text)
		network.IP = net.ParseIP(strings.Split(text, "/")[0])
		return network
	}
	here := func() ([]net.Addr, error) { return []net.Addr{ip("127.0.0.1/8"), ip("10.0.0.5/24")}, nil }
	gone := func() ([]net.Addr, error) { return []net.Addr{ip("127.0.0.1/8"), ip("10.0.0.50/24")}, nil }
	unknown := func() ([]net.Addr, error) { return nil, errors.New("no such call") }
	a := ownAddress{addr: netip.MustParseAddr("10.0.0.5")}
	for i, step := range []struct {
		addresses     func() ([]net.Addr, error)
		changed, lost bool
	}{
		{here, false, false},
		{gone, false, true}, // for a moment
		{here, false, false},
		{gone, false, true},
		{unknown, false, false},
		{gone, true, true},
		{gone, false, true},
		{here, true, false},
		{here, false, false},
	} {
		changed, lost := a.look(step.addresses)
		if changed != step.changed || changed && lost != step.lost {
			t.Errorf("step %d: changed %v, lost %v", i, changed, lost)
		}
	}
	if changed, _ := new(ownAddress).look(gone); changed {
		t.Error("an address that was given is looked for")
	}
}

// A node that others do not reach where it says is not ready, and says why.
func TestLostAddressIsNotReady(t *testing.T) {
	n := startNode(t, testSettings(t))
	if n.ownAddress().addr.IsValid() {
		t.Error("an address that was bound to is looked for")
	}
	n.lostAddress.Store(true)
	if code, text := n.get(t, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "--advertise") {
		t.Errorf("readyz: %d %s", code, text)
	}
}

func TestSleeper(t *testing.T) {
	second := int64(time.Second)
	s := sleeper{50 * second}
	for i, step := range []struct {
		now  int64
		want time.Duration
	}{
		{50*second + second/4, 0},
		{51*second + second/4, 0}, // late, but not by a second
		{61*second + second/2 + second/5, 10*time.Second + 200*time.Millisecond},
		{61*second + second/2 + second/5 + second/4, 0},
	} {
		if got := s.look(step.now, 250*time.Millisecond); got != step.want {
			t.Errorf("look %d: %v, want %v", i, got, step.want)
		}
	}
}
