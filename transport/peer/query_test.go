package peer

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/message"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// answer serves a node that responds to requests with f.
func (n *network) answer(t *testing.T, addr string, f func(context.Context, message.Body) message.Body) *Server {
	c := n.config(addr[:1])
	c.Answer = f
	s, _ := n.serve(t, addr, c, handlerFunc(echo))
	return s
}

// TestQuery: a request gets its own response from the node at the address.
func TestQuery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		network.answer(t, "b:1", func(_ context.Context, q message.Body) message.Body {
			k, ok := q.(*message.KeyRequest)
			if !ok || !k.Limits.Equal(hundred) {
				return nil
			}
			return &message.KeyResponse{Key: facts.Key{Partition: int(k.Key.Lo), Counted: true}}
		})
		pool := open(t, network.config("a"))
		for i := range 3 {
			got, err := pool.Query(t.Context(), "b:1", &message.KeyRequest{Key: bucket.Key{Lo: uint64(i)}, Limits: hundred})
			if k, ok := got.(*message.KeyResponse); err != nil || !ok || k.Key.Partition != i || !k.Key.Counted {
				t.Errorf("request %d: %+v, %v", i, got, err)
			}
		}
		for _, c := range []struct {
			addr    string
			request message.Body
			want    string
		}{
			{"b:1", &message.TopRequest{}, "node b has no answer"},
			{"b:1", nil, "no message"},
			{"c:1", &message.TopRequest{}, "connection refused"},
		} {
			if got, err := pool.Query(t.Context(), c.addr, c.request); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.addr) {
				t.Errorf("%s, %T: %+v, %v; want %q", c.addr, c.request, got, err, c.want)
			}
		}
	})
}

// TestAskEnds: who asks waits no longer than its context, nor than its pool is open.
func TestAskEnds(t *testing.T) {
	for name, silent := range map[string]string{"a node that does not answer": "b:1", "an address that does not": "c:1"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				network := newNetwork()
				network.answer(t, "b:1", func(ctx context.Context, _ message.Body) message.Body {
					<-ctx.Done() // the request is over
					return nil
				})
				c := network.config("a")
				dial := c.Dial
				c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
					if addr == "c:1" {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return dial(ctx, addr)
				}
				pool := open(t, c)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				if _, err := pool.Query(ctx, silent, &message.TopRequest{}); err == nil || time.Since(began) != time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				go func() {
					time.Sleep(time.Second)
					pool.Close()
				}()
				began = time.Now()
				if _, err := pool.Query(t.Context(), silent, &message.TopRequest{}); err == nil || time.Since(began) != time.Second {
					t.Errorf("closed: %v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// TestQueryBounded: a node answers a bounded number of requests at a time.
func TestQueryBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, hold := newNetwork(), make(chan struct{})
		network.answer(t, "b:1", func(context.Context, message.Body) message.Body {
			<-hold
			return &message.TopResponse{}
		})
		pool := open(t, network.config("a"))
		results := make(chan error, MaxRequests)
		for range MaxRequests {
			go func() {
				_, err := pool.Query(t.Context(), "b:1", &message.TopRequest{})
				results <- err
			}()
		}
		synctest.Wait()
		if _, err := pool.Query(t.Context(), "b:1", &message.TopRequest{}); err == nil || !strings.Contains(err.Error(), "64 requests already") {
			t.Errorf("one more: %v", err)
		}
		close(hold)
		for range MaxRequests {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if _, err := pool.Query(t.Context(), "b:1", &message.TopRequest{}); err != nil {
			t.Error(err)
		}
	})
}

// TestQueryMalformed: a frame without exactly one known request ends the call with the reason, and so does
// asking without a hello.
func TestQueryMalformed(t *testing.T) {
	network := newNetwork()
	server := network.answer(t, "b:1", func(context.Context, message.Body) message.Body { return &message.TopResponse{} })
	two := post(t, head(&message.TopRequest{}), &message.TopRequest{}, head(&message.TopRequest{}), &message.TopRequest{})
	for _, c := range []struct {
		name  string
		greet bool
		post  *peerv1.MessageFrame
		code  codes.Code
		want  string
	}{
		{"no hello", false, post(t, head(&message.TopRequest{}), &message.TopRequest{}), codes.FailedPrecondition, "not a hello"},
		{"nothing", true, &peerv1.MessageFrame{}, codes.InvalidArgument, "0 messages; want 1"},
		{"two", true, two, codes.InvalidArgument, "2 messages; want 1"},
		{"a kind that is none", true, post(t, header{Kind: 200}, 1), codes.Unimplemented, "does not know this request"},
	} {
		stream, err := rawConn(t, network, "b:1").Query(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.greet {
			config := network.config("x")
			if _, err := config.greet(stream, ""); err != nil {
				t.Fatal(err)
			}
		}
		_ = stream.Send(c.post) // the answer says why
		if _, err := stream.Recv(); status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %v with %q", c.name, err, c.code, c.want)
		}
	}
	if s := server.Stats(); s.Malformed != 2 || s.Rejected != 1 {
		t.Errorf("%+v", s)
	}
}
