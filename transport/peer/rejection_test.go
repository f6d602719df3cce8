package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestRejected: nodes that do not fit say why, on both sides, with both values.
func TestRejected(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"placement", func(c *Config) { c.Placement = 8 }, []string{"placement", "8", "7"}},
		{"secret", func(c *Config) { c.ProofKeys = keys("another") }, []string{"secret not accepted"}},
		{"secret put first too early", func(c *Config) { c.ProofKeys = keys("another", "one") }, []string{"secret not accepted"}},
		{"counter keys", func(c *Config) { c.CountersTag = []byte("others") }, []string{"counter keys"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			network := newNetwork()
			server, _ := network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
			config := network.config("a")
			c.change(&config)
			pool := open(t, config)
			err := ask(t.Context(), pool, "b:1", 1)
			if !errors.Is(err, check.ErrUnsent) {
				t.Errorf("got %v, want it unsent", err)
			}
			for _, want := range append(c.want, "b:1", "node b rejects") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
			if s := server.Stats(); s.Rejected != 1 || s.Records != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestWelcome(t *testing.T) {
	c, x := (&network{}).config("b"), (&network{}).config("x")
	if err := c.compatible(x.hello()); err != nil {
		t.Error(err)
	}
	for _, w := range []struct {
		name         string
		major, minor uint32
		want         string // "" for checkHello
	}{
		{"equal", Major, Minor, ""},
		{"one minor ahead", Major, Minor + 1, ""},
		{"two minors ahead", Major, Minor + 2, "speaks 3.3, this one 3.1"},
		{"next major", Major + 1, Minor, "speaks 4.1, this one 3.1"},
		{"previous major", Major - 1, Minor, "speaks 2.1, this one 3.1"},
		{"far ahead", Major, 1<<32 - 1, "4294967295"},
	} {
		h := x.hello()
		h.Major, h.Minor = w.major, w.minor
		err := c.compatible(h)
		if (err == nil) != (w.want == "") || err != nil && !strings.Contains(err.Error(), w.want) {
			t.Errorf("%s: %v, want %q", w.name, err, w.want)
		}
	}
	for _, change := range []func(*peerv1.Hello){
		func(h *peerv1.Hello) { h.Name = "" },
		func(h *peerv1.Hello) { h.Boot = "" },
		func(h *peerv1.Hello) { h.Name = strings.Repeat("x", maxHelloText+1) },
		func(h *peerv1.Hello) { h.Nonce = nil },
		func(h *peerv1.Hello) { h.Nonce = h.Nonce[1:] },
		func(h *peerv1.Hello) { h.Boot = c.Boot },
	} {
		h := x.hello()
		change(h)
		if err := c.compatible(h); err == nil {
			t.Errorf("%v is welcome", h)
		}
	}
}

// rawConn is a connection as another program would make it, without this package's client.
func rawConn(t *testing.T, network *network, addr string) peerv1.PeerServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(network.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return peerv1.NewPeerServiceClient(conn)
}

// raw is a stream of records over a rawConn, without hellos.
func raw(t *testing.T, network *network, addr string) grpc.BidiStreamingClient[peerv1.Request, peerv1.Reply] {
	t.Helper()
	stream, err := rawConn(t, network, addr).Exchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// greeted is a raw stream after the hellos.
func greeted(t *testing.T, network *network, addr string) grpc.BidiStreamingClient[peerv1.Request, peerv1.Reply] {
	t.Helper()
	stream, x := raw(t, network, addr), network.config("x")
	if _, err := x.greet(stream, ""); err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestMalformed: a frame that makes no sense ends its stream with the reason, and
// only its stream.
func TestMalformed(t *testing.T) {
	hello := (&network{}).config("b")
	limits := func(id uint32) []*peerv1.Limits {
		return []*peerv1.Limits{{Id: id, Limits: []*sluicev1.Limit{{Count: 1, PeriodNs: 1e9}}}}
	}
	two := []uint64{1, 2}
	for _, c := range []struct {
		name  string
		first bool // instead of the hello, not after it
		frame *peerv1.Request
		code  codes.Code
		want  string
	}{
		{"no hello", true, &peerv1.Request{Seq: 1}, codes.FailedPrecondition, "not a hello"},
		{"second hello", false, &peerv1.Request{Hello: hello.hello()}, codes.InvalidArgument, "second hello"},
		{"short column", false, &peerv1.Request{Seq: 3, KeyLo: two, Cost: []int64{1}}, codes.InvalidArgument, "frame 3: column cost has 1 values for 2 records"},
		{"long column", false, &peerv1.Request{KeyLo: two, Verb: []byte{1, 1, 1}}, codes.InvalidArgument, "column verb has 3 values for 2 records"},
		{"no keys", false, &peerv1.Request{KeyHi: two}, codes.InvalidArgument, "column key_hi has 2 values for 0 records"},
		{
			"unknown limits", false, &peerv1.Request{Define: limits(4), KeyLo: two, Limits: []uint32{4, 3}},
			codes.InvalidArgument, "record 1: limits 3 were not defined",
		},
		{
			"limits past all numbers", false, &peerv1.Request{KeyLo: two, Limits: []uint32{1<<32 - 1, 1}},
			codes.InvalidArgument, "limits 4294967295 were not defined",
		},
		{"definition of 0", false, &peerv1.Request{Define: limits(0)}, codes.InvalidArgument, "definition of limits 0"},
		{"definition past the last", false, &peerv1.Request{Define: limits(maxLimitIDs + 1)}, codes.InvalidArgument, "definition of limits 8193"},
		{"too many records", false, &peerv1.Request{KeyLo: make([]uint64, MaxRecords+1)}, codes.InvalidArgument, "16385 records"},
		{"too many bytes", false, &peerv1.Request{KeyLo: make([]uint64, maxFrameBytes/8)}, codes.ResourceExhausted, "larger than max"},
	} {
		t.Run(c.name, func(t *testing.T) {
			network, _, pool := pair(t, handlerFunc(echo))
			connect := greeted
			if c.first {
				connect = raw
			}
			stream := connect(t, network, "b:1")
			if err := stream.Send(c.frame); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			_, err := stream.Recv()
			if status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v with %q", err, c.code, c.want)
			}
			if err := ask(t.Context(), pool, "b:1", 1); err != nil {
				t.Errorf("another stream: %v", err)
			}
		})
	}
}

// TestNoWord: a stream on which nothing comes ends after greetTimeout.
func TestNoWord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
		start := time.Now()
		_, err := raw(t, network, "b:1").Recv()
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "nothing came within") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != greetTimeout {
			t.Errorf("it took %v", took)
		}
	})
}

// goneStream is one whose peer has hung up after its hello.
type goneStream struct {
	grpc.ServerStream
	ctx   context.Context
	hello *peerv1.Hello
}

func (s *goneStream) Context() context.Context { return s.ctx }
func (s *goneStream) SendMsg(any) error {
	return status.Error(codes.Unavailable, "transport is closing")
}
func (s *goneStream) RecvMsg(m any) error {
	m.(*peerv1.Greeting).Hello = s.hello
	return nil
}

// TestHungUp: a peer that hangs up while it is greeted is not said to be rejected.
func TestHungUp(t *testing.T) {
	network, log := newNetwork(), new(strings.Builder)
	config, x := network.config("b"), network.config("x")
	config.Log = slog.New(slog.NewTextHandler(log, nil))
	server, _ := network.serve(t, "b:1", config, handlerFunc(echo))
	_, err := service{Server: server}.admit(&goneStream{ctx: t.Context(), hello: x.hello()}, false)
	if n := server.Stats().Rejected; status.Code(err) != codes.Unavailable || n != 0 || strings.Contains(log.String(), "rejected") {
		t.Errorf("%v, %d counted, and the log says %q", err, n, log)
	}
}

// TestUndecidable: limits that this node cannot make sense of spoil their records,
// not the stream.
func TestUndecidable(t *testing.T) {
	var got []bool
	network, _, _ := pair(t, handlerFunc(func(_ string, records []check.Record, _ []check.Reply) {
		for _, r := range records {
			got = append(got, r.Limits != nil)
		}
	}))
	stream := greeted(t, network, "b:1")
	if err := stream.Send(&peerv1.Request{
		Define: []*peerv1.Limits{
			{Id: 1, Limits: []*sluicev1.Limit{{Algorithm: 200, Count: 1, PeriodNs: 1e9}}},
			{Id: 2, Limits: []*sluicev1.Limit{{Count: 1, PeriodNs: 1e9}}},
			{Id: 3},
		},
		KeyLo: []uint64{1, 2, 3, 4}, Limits: []uint32{1, 2, 3, 0},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if want := []bool{false, true, false, false}; !slices.Equal(got, want) {
		t.Errorf("records with limits: %v, want %v", got, want)
	}
}

// TestGarbage: bytes that are no gRPC end their connection and nothing else.
func TestGarbage(t *testing.T) {
	_, addr := listen(t, new(lines))
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for _, garbage := range []string{
		"", "\x00", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		strings.Repeat("\xff", 1<<16), preface, preface + strings.Repeat("\xff", 1<<12),
		preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + strings.Repeat("\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff", 9),
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, garbage); err == nil {
			conn.(*net.TCPConn).CloseWrite()
			conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("after %.20q the connection stays", garbage)
			}
		}
		conn.Close()
	}
	config := (&network{}).config("a")
	config.Dial = nil
	pool := open(t, config)
	if err := ask(t.Context(), pool, addr, 1); err != nil {
		t.Errorf("after the garbage: %v", err)
	}
}

// liar is a peer whose answers are malformed, or come before anything was asked.
type liar struct {
	peerv1.UnimplementedPeerServiceServer
	hello  *peerv1.Hello
	answer *peerv1.Reply
	early  bool
}

func (l liar) Exchange(stream grpc.BidiStreamingServer[peerv1.Request, peerv1.Reply]) error {
	c := (&network{}).config("b")
	if err := c.greetAs(stream, l.hello); err != nil {
		return err
	}
	if !l.early {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	if err := stream.Send(l.answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// impostor serves p as a node at addr of the network.
func (n *network) impostor(t *testing.T, addr string, p peerv1.PeerServiceServer) {
	s := grpc.NewServer()
	peerv1.RegisterPeerServiceServer(s, p)
	go s.Serve(n.listen(addr))
	t.Cleanup(s.Stop)
}

// TestLies: an answer that cannot be right is none.
func TestLies(t *testing.T) {
	good := (&network{}).config("b")
	other := good
	other.Placement++
	for _, c := range []struct {
		name  string
		hello *peerv1.Hello
		lie   *peerv1.Reply
		want  error
		says  string
	}{
		{"another placement", other.hello(), nil, check.ErrUnsent, "placement"},
		{"no hello", nil, nil, check.ErrUnsent, "not a hello"},
		{"another frame", good.hello(), &peerv1.Reply{Seq: 2, Status: []byte{1}}, check.ErrAmbiguous, "answer to frame 2 where 1 was due"},
		{"too few", good.hello(), &peerv1.Reply{Seq: 1}, check.ErrAmbiguous, "column status has 0 values for 1 records"},
		{"too many", good.hello(), &peerv1.Reply{Seq: 1, Status: []byte{1, 1}}, check.ErrAmbiguous, "column status"},
		{"uneven", good.hello(), &peerv1.Reply{Seq: 1, Status: []byte{1}, Remaining: []int64{1, 2}}, check.ErrAmbiguous, "column remaining"},
		{"nameless owner", good.hello(), &peerv1.Reply{Seq: 1, Status: []byte{1}, Names: []string{"x"}, Owner: []uint32{2}}, check.ErrAmbiguous, "owner 2 of 1"},
		{"a denial too few", good.hello(), &peerv1.Reply{Seq: 1, Status: []byte{1}, Flags: []byte{4}}, check.ErrAmbiguous, "0 denials for 1"},
		{"hello again", good.hello(), &peerv1.Reply{Seq: 1, Status: []byte{1}, Hello: good.hello()}, check.ErrAmbiguous, "second hello"},
	} {
		t.Run(c.name, func(t *testing.T) {
			network := newNetwork()
			network.impostor(t, "b:1", liar{hello: c.hello, answer: c.lie})
			pool := open(t, network.config("a"))
			err := ask(t.Context(), pool, "b:1", 1)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.says)
			}
		})
	}
	t.Run("answer to nothing", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			network := newNetwork()
			network.impostor(t, "b:1", liar{hello: good.hello(), answer: &peerv1.Reply{Seq: 77}, early: true})
			pool := open(t, network.config("a"))
			if err := ask(t.Context(), pool, "b:1", 1); err == nil {
				t.Error("the call got an answer")
			}
			synctest.Wait()
			if s := pool.Stats(); s.Peers != 0 {
				t.Errorf("the stream is still used: %+v", s)
			}
		})
	})
}
