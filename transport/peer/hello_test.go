package peer

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// TestRotation: secrets are exchanged in three steps, node by node, and nodes that are a step apart talk in both directions.
func TestRotation(t *testing.T) {
	steps := [][]string{{"old"}, {"old", "new"}, {"new", "old"}, {"new"}}
	for i := range steps {
		for j := range steps {
			network := newNetwork()
			a, b := network.config("a"), network.config("b")
			a.ProofKeys, b.ProofKeys = keys(steps[i]...), keys(steps[j]...)
			network.serve(t, "b:1", b, handlerFunc(echo))
			err := ask(t.Context(), open(t, a), "b:1", 1)
			if near := i-j <= 1 && j-i <= 1; near != (err == nil) {
				t.Errorf("%v asks %v: %v", steps[i], steps[j], err)
			}
		}
	}
}

// TestKeysAreAskedAtEveryHello: other keys are in force for the next connection.
func TestKeysAreAskedAtEveryHello(t *testing.T) {
	network := newNetwork()
	b, inForce := network.config("b"), keys("one")
	b.ProofKeys = func() [][]byte { return inForce() }
	network.serve(t, "b:1", b, handlerFunc(echo))
	if err := ask(t.Context(), open(t, network.config("a")), "b:1", 1); err != nil {
		t.Error(err)
	}
	inForce = keys("another")
	if err := ask(t.Context(), open(t, network.config("a")), "b:1", 1); err == nil {
		t.Error("a node with the old secret is let in")
	}
}

// TestGreet connects, says who rejects and why, and leaves no stream behind.
func TestGreet(t *testing.T) {
	network := newNetwork()
	network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
	if err := open(t, network.config("a")).Greet("b:1"); err != nil {
		t.Error(err)
	}
	other := network.config("a")
	other.ProofKeys = keys("another")
	if err := open(t, other).Greet("b:1"); err == nil || !strings.Contains(err.Error(), "secret not accepted") {
		t.Errorf("another secret: %v", err)
	}
}

// TestNothingIsTold: a caller that does not know the secret is told no more than who answers. Nothing that it gets is made with
// the secret, and nothing that it got before serves it.
func TestNothingIsTold(t *testing.T) {
	network := newNetwork()
	b := network.config("b")
	server, _ := network.serve(t, "b:1", b, handlerFunc(echo))
	var nonces [][]byte
	for _, forged := range []func(own, theirs *peerv1.Hello) *peerv1.Proof{
		func(_, _ *peerv1.Hello) *peerv1.Proof { return nil },
		func(_, _ *peerv1.Hello) *peerv1.Proof { return &peerv1.Proof{} },
		func(own, theirs *peerv1.Hello) *peerv1.Proof { return transcript{own, theirs}.proof(nil, dialer, nil) },
		func(own, theirs *peerv1.Hello) *peerv1.Proof {
			return transcript{own, theirs}.proof(theirs.Nonce, dialer, theirs.Nonce)
		},
		func(own, theirs *peerv1.Hello) *peerv1.Proof {
			return transcript{own, theirs}.proof([]byte("another"), dialer, b.CountersTag)
		},
	} {
		evil := network.config("evil")
		stream, own := raw(t, network, "b:1"), evil.hello()
		first, err := exchangeGreeting(stream, &peerv1.Greeting{Hello: own})
		if err != nil {
			t.Fatal(err)
		}
		nonces = append(nonces, first.Hello.Nonce)
		want := &peerv1.Greeting{Hello: &peerv1.Hello{
			Major: Major, Minor: Minor, Name: "b", Boot: "b-1", Placement: b.Placement, Nonce: first.Hello.Nonce,
		}}
		if !proto.Equal(first, want) {
			t.Errorf("the hello tells %v", first)
		}
		second, err := exchangeGreeting(stream, &peerv1.Greeting{Proof: forged(own, first.Hello)})
		if err == nil || !strings.Contains(err.Error(), "secret not accepted") {
			t.Errorf("got %v, %v", second, err)
		}
	}
	for i, n := range nonces {
		for _, m := range nonces[:i] {
			if bytes.Equal(n, m) {
				t.Error("a nonce comes twice")
			}
		}
	}
	if s := server.Stats(); s.Rejected != 5 || s.Records+s.Delivered != 0 {
		t.Errorf("%+v", s)
	}
}

// TestReplay: what a node has sent to one that it knows is no use to another caller, in either role.
func TestReplay(t *testing.T) {
	network := newNetwork()
	a, b := network.config("a"), network.config("b")
	heardA, heardB := a.hello(), b.hello()
	said := transcript{heardA, heardB}
	proofs := []*peerv1.Proof{a.prove(dialer, said), b.prove(accepter, said)}

	network.serve(t, "b:1", b, handlerFunc(echo))
	for i, p := range proofs {
		stream := raw(t, network, "b:1")
		if _, err := exchangeGreeting(stream, &peerv1.Greeting{Hello: heardA}); err != nil {
			t.Fatal(err)
		}
		if _, err := exchangeGreeting(stream, &peerv1.Greeting{Proof: p}); err == nil || !strings.Contains(err.Error(), "secret not accepted") {
			t.Errorf("old proof %d: %v", i, err)
		}
	}
	for i, p := range proofs {
		addr := "replay:" + string(rune('1'+i))
		network.impostor(t, addr, recorded{hello: heardB, answer: func(*peerv1.Proof) *peerv1.Proof { return p }})
		if err := ask(t.Context(), open(t, a), addr, 1); !errors.Is(err, check.ErrUnsent) || !strings.Contains(err.Error(), "secret not accepted") {
			t.Errorf("old proof %d from one who is dialed: %v", i, err)
		}
	}
}

// recorded is a peer that repeats another's hello and answers proofs by hand.
type recorded struct {
	peerv1.UnimplementedPeerServiceServer
	hello  *peerv1.Hello
	answer func(*peerv1.Proof) *peerv1.Proof
}

func (r recorded) Exchange(stream grpc.BidiStreamingServer[peerv1.Request, peerv1.Reply]) error {
	var first, second peerv1.Greeting
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	if err := stream.SendMsg(&peerv1.Greeting{Hello: r.hello}); err != nil {
		return err
	}
	if err := stream.RecvMsg(&second); err != nil {
		return err
	}
	if err := stream.SendMsg(&peerv1.Greeting{Proof: r.answer(second.Proof)}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// TestReflection: a node that is dialed gets its own proof back, or is made to prove to itself what another then shows it.
func TestReflection(t *testing.T) {
	network := newNetwork()
	a := network.config("a")
	other := network.config("b")
	network.impostor(t, "mirror:1", recorded{hello: other.hello(), answer: func(p *peerv1.Proof) *peerv1.Proof { return p }})
	if err := ask(t.Context(), open(t, a), "mirror:1", 1); err == nil || !strings.Contains(err.Error(), "secret not accepted") {
		t.Errorf("the own proof comes back: %v", err)
	}
	// A go-between that connects a node to itself would have both proofs made for it.
	server, _ := network.serve(t, "a:1", a, handlerFunc(echo))
	a.DialTimeout = 5 * time.Second
	if err := ask(t.Context(), open(t, a), "a:1", 1); err == nil || !strings.Contains(err.Error(), "own boot id") {
		t.Errorf("a node talks to itself: %v", err)
	}
	if s := server.Stats(); s.Records != 0 {
		t.Errorf("%+v", s)
	}
}

// TestHelloWithoutProof: a caller that says hello and no more is gone after greetTimeout.
func TestHelloWithoutProof(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		network.serve(t, "b:1", network.config("b"), handlerFunc(echo))
		stream, x, start := raw(t, network, "b:1"), network.config("x"), time.Now()
		if _, err := exchangeGreeting(stream, &peerv1.Greeting{Hello: x.hello()}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "no proof came after the hello") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != greetTimeout {
			t.Errorf("it took %v", took)
		}
	})
}
