package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
)

// These tests use real sockets on loopback, and real time: each waits for a
// condition with a deadline.

const patience = 10 * time.Second

func loopback(name string, join ...string) Config {
	return Config{
		Name: name, Bind: "127.0.0.1:0", Join: join, Peer: ":7462", HTTP: "127.0.0.1:7461", Placement: 1,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func openReal(t *testing.T, c Config) *Gossip {
	t.Helper()
	g, err := Open(t.Context(), c)
	must(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("%s: Close: %v", c.Name, err)
		}
	})
	return g
}

func serveReal(t *testing.T, c Config) *Gossip {
	t.Helper()
	g := openReal(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.Ready(ctx); err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	if err := g.SetState(member.Serving); err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	return g
}

// realPair returns two nodes that show each other.
func realPair(t *testing.T) (a, b *Gossip) {
	t.Helper()
	a = serveReal(t, loopback("a"))
	b = serveReal(t, loopback("b", a.Addr()))
	awaitServing(t, a, 2)
	awaitServing(t, b, 2)
	return a, b
}

// awaitServing waits until a node shows exactly so many serving members.
func awaitServing(t *testing.T, g *Gossip, n int) {
	t.Helper()
	deadline := time.After(patience)
	for len(serving(g.View())) != n {
		select {
		case <-g.Changes():
		case <-deadline:
			t.Fatalf("%s shows %s, want %d serving", g.config.Name, show(g.View()), n)
		}
	}
}

func TestRealSockets(t *testing.T) {
	a := serveReal(t, loopback("a"))
	self := a.Self()
	if addr := netip.MustParseAddrPort(a.Addr()); addr.Port() == 0 || addr.Addr().String() != "127.0.0.1" {
		t.Errorf("Addr() = %s", a.Addr())
	}
	if self.Peer != "127.0.0.1:7462" || self.HTTP != "127.0.0.1:7461" || self.GRPC != "" || self.Gossip != a.Addr() {
		t.Errorf("Self() = %+v", self)
	}
	b := serveReal(t, loopback("b", "localhost:"+portOf(a)))
	c := serveReal(t, loopback("c", b.Addr()))
	for _, g := range []*Gossip{a, b, c} {
		awaitServing(t, g, 3)
	}
	must(t, c.Leave(t.Context()))
	awaitServing(t, a, 2)
	awaitServing(t, b, 2)
}

func portOf(g *Gossip) string {
	return strconv.Itoa(int(netip.MustParseAddrPort(g.Addr()).Port()))
}

// Garbage on the gossip port, UDP and TCP, changes nothing.
func TestGarbage(t *testing.T) {
	a, b := realPair(t)
	before := a.View().Seq

	udp, err := net.Dial("udp", a.Addr())
	must(t, err)
	defer func() { _ = udp.Close() }()
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 3000 {
		_, _ = udp.Write(garbage(random, byte(i)))
	}
	for i := range 300 {
		tcp, err := net.Dial("tcp", a.Addr())
		must(t, err)
		_, _ = tcp.Write(garbage(random, byte(i)))
		_ = tcp.Close()
	}
	// One connection that says nothing and stays.
	idle, err := net.Dial("tcp", a.Addr())
	must(t, err)
	defer func() { _ = idle.Close() }()

	c := serveReal(t, loopback("c", a.Addr()))
	for _, g := range []*Gossip{a, b, c} {
		awaitServing(t, g, 3)
	}
	if got := a.View().Seq - before; got > 2 {
		t.Errorf("a built %d views, want one for c's arrival and one for its state", got)
	}
	if err := a.Err(); err != nil {
		t.Error(err)
	}
}

// garbage is random bytes after a first byte that means something to memberlist:
// a kind of message, a checksum, a label.
func garbage(random *rand.Rand, kind byte) []byte {
	b := make([]byte, 1+random.IntN(600))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	kinds := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 244, 255}
	b[0] = kinds[int(kind)%len(kinds)]
	return b
}

func TestPortInUse(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = tcp.Close() }()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = udp.Close() }()
	for _, taken := range []string{tcp.Addr().String(), udp.LocalAddr().String()} {
		c := loopback("n")
		c.Bind = taken
		g, err := Open(t.Context(), c)
		if err == nil {
			_ = g.Close()
			t.Fatalf("Open with %s in use succeeds", taken)
		}
		for _, want := range []string{"Bind", taken, "in use", "gossip port"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
		}
	}
}

// A target that accepts and then says nothing, as a stopped process does, holds
// up neither the other targets nor Close.
func TestSilentTarget(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = silent.Close() }()
	accepted := make(chan struct{})
	go func() {
		conn, err := silent.Accept()
		if err == nil {
			close(accepted)
			defer func() { _ = conn.Close() }()
			_, _ = conn.Read(make([]byte, 1<<20))
			_, _ = conn.Read(make([]byte, 1)) // until the other side closes
		}
	}()
	a := serveReal(t, loopback("a"))
	c := loopback("b", silent.Addr().String(), a.Addr())
	c.DialTimeout = time.Minute
	b := openReal(t, c)
	<-accepted
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Ready(ctx); err != nil {
		t.Fatalf("b is not ready although a answers: %v", err)
	}
	start := time.Now()
	must(t, b.Close())
	if took := time.Since(start); took > patience {
		t.Errorf("Close took %v", took)
	}
}

func TestBindAndAdvertiseByName(t *testing.T) {
	var book names
	book.addresses = map[string][]netip.Addr{}
	book.set("here", "127.0.0.1")
	book.set("outside", "192.0.2.7")
	c := loopback("n")
	c.Resolver = &book
	c.Bind, c.Advertise = "here:0", "outside:9999"
	g := openReal(t, c)
	if g.Addr() != "192.0.2.7:9999" {
		t.Errorf("Addr() = %s", g.Addr())
	}
	if got := g.Self().Peer; got != "192.0.2.7:7462" {
		t.Errorf("Peer = %s", got)
	}
	for field, change := range map[string]func(*Config){
		"Bind":      func(c *Config) { c.Bind = "elsewhere:0" },
		"Advertise": func(c *Config) { c.Advertise = "elsewhere" },
	} {
		bad := c
		change(&bad)
		_, err := Open(t.Context(), bad)
		if err == nil || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "elsewhere") {
			t.Errorf("unknown name in %s: %v", field, err)
		}
	}
}

// The debug log passes memberlist's lines on.
func TestLibraryLines(t *testing.T) {
	book := &logBook{}
	c := loopback("n", "127.0.0.1:1")
	c.JoinTimeout = 300 * time.Millisecond
	c.Logger = slog.New(slog.NewTextHandler(book, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g := openReal(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, g.Ready(ctx))
	if book.count("level=DEBUG", "source=memberlist", "severity=debug", "failed to join 127.0.0.1:1") == 0 {
		t.Errorf("no line of memberlist's\n%s", book)
	}
	for line, want := range map[string][2]string{
		"[WARN] memberlist: Refuting\n":  {"warn", "Refuting"},
		"[ERR] memberlist: no\n":         {"error", "no"},
		"[ERROR] memberlist: no\n":       {"error", "no"},
		"[INFO] memberlist: Marking x\n": {"info", "Marking x"},
		"plain\n":                        {"info", "plain"},
		"[odd":                           {"info", "[odd"},
		"":                               {"info", ""},
	} {
		severity, text := parseLine([]byte(line))
		if got := [2]string{severity, text}; got != want {
			t.Errorf("parseLine(%q) = %v, want %v", line, got, fmt.Sprint(want))
		}
	}
}
