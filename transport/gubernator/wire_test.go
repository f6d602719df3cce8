package gubernator

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/internal/wire"
)

// rawCodec carries *[]byte as they are, under the name of the codec that gubernator's clients use.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// dial serves d in memory until the test ends, and returns a connection of bytes to it.
func dial(t *testing.T, d *API) *grpc.ClientConn {
	t.Helper()
	g, lis, served := grpc.NewServer(grpc.ForceServerCodecV2(wire.NewCodec())), bufconn.Listen(1<<20), make(chan error, 1)
	d.Register(g)
	go func() { served <- g.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///api",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return conn
}

// message returns the bytes that text spells: hex digits, texts in quotes, and in braces what its
// length goes before. What follows a # is there to be read.
func message(t *testing.T, text string) []byte {
	t.Helper()
	open := [][]byte{nil}
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			last := len(open) - 1
			switch {
			case word == "{":
				open = append(open, nil)
			case word == "}":
				inner := open[last]
				open = open[:last]
				open[last-1] = append(binary.AppendUvarint(open[last-1], uint64(len(inner))), inner...)
			case word[0] == '\'':
				quoted := strings.ReplaceAll(strings.Trim(word, "'"), "_", " ")
				open[last] = append(binary.AppendUvarint(open[last], uint64(len(quoted))), quoted...)
			default:
				b, err := hex.DecodeString(word)
				if err != nil {
					t.Fatal(err)
				}
				open[last] = append(open[last], b...)
			}
		}
	}
	if len(open) != 1 {
		t.Fatalf("braces are left open in %q", text)
	}
	return open[0]
}

// wordy is a limiter.Service that reports why it has no quorum.
type wordy struct{ limiter.Service }

func (l *wordy) Members(ctx context.Context) limiter.Members {
	m := l.Service.Members(ctx)
	m.Reason = "it is new"
	return m
}

// TestWire holds the names, the numbers and the types to those that gubernator's clients have compiled
// in. The bytes are written by hand: generated code would agree with itself.
func TestWire(t *testing.T) {
	n := apitest.NewNode(t)
	d := open(t, n, n, func(c *Config) {
		c.Limiter = &wordy{Service: c.Limiter}
	})
	conn := dial(t, d)
	for _, c := range []struct{ name, method, ask, want string }{
		{"a window with everything set, and a request without a key", "GetRateLimits", `
			0a {                    # requests
				0a 'n'              # name
				12 'k'              # unique_key
				18 03               # hits 3
				20 0a               # limit 10
				28 e0d403           # duration 60000
				30 00               # algorithm TOKEN_BUCKET
				38 23               # behavior NO_BATCHING, GLOBAL, DRAIN_OVER_LIMIT
				40 07               # burst 7
				4a { 0a 'a' 12 'b' } # metadata a: b
				50 01               # created_at 1
				9a06 'later'        # field 99, of a later version
			}
			0a { 0a 'n' }`, `
			0a {                    # responses
				10 0a               # limit 10
				18 07               # remaining 7
				20 e0f49f82bd31     # reset_time 1700006460000
			}
			0a { 2a { 6669656c642027756e697175655f6b6579272063616e6e6f7420626520656d707479 } }`},
		{"more than is left, by a leaky bucket in hours", "GetRateLimits", `
			0a {
				0a 'n' 12 'k'
				18 08               # hits 8
				20 02               # limit 2
				28 01               # duration: hours
				30 01               # algorithm LEAKY_BUCKET
				38 04               # behavior DURATION_IS_GREGORIAN
				40 07               # burst 7
			}`, `
			0a {
				08 01               # status OVER_LIMIT
				10 02
				18 07
				20 80a09c82bd31     # reset_time 1700006400000
			}`},
		{"giving back", "GetRateLimits", `
			0a {
				0a 'n' 12 'k'
				18 ffffffffffffffffff01 # hits -1
				20 0a
				28 e0d403
			}`, `
			0a { 10 0a 18 08 20 e0f49f82bd31 }`},
		{"whom it sees", "HealthCheck", ``, `
			0a 'unhealthy'          # status
			12 'this_node_has_no_quorum:_it_is_new'
			18 01                   # peer_count
			22 '127.0.0.1:7460'     # advertise_address
			2a { 0a '127.0.0.1:7460' } # local_peers`},
		{"that it lives", "LiveCheck", ``, ``},
	} {
		req, res := message(t, c.ask), []byte(nil)
		if err := conn.Invoke(t.Context(), "/pb.gubernator.V1/"+c.method, &req, &res); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if want := message(t, c.want); string(res) != string(want) {
			t.Errorf("%s:\n\t%x\nwant\n\t%x", c.name, res, want)
		}
	}
	req, res := []byte(strings.Repeat("\x0a\x00", maxRequests+1)), []byte(nil)
	if err := conn.Invoke(t.Context(), "/pb.gubernator.V1/GetRateLimits", &req, &res); status.Code(err) != codes.OutOfRange {
		t.Errorf("1001 requests: %v", err)
	}
}
