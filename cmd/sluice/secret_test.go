package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
	"github.com/sluice-project/sluice/ring"
	"github.com/sluice-project/sluice/transport/peer"
)

const (
	secretOne = "1-secret-of-as-many-bytes-as-it-wants"
	secretTwo = "2-secret-of-as-many-bytes-as-it-wants"
)

func TestParseSecrets(t *testing.T) {
	for text, want := range map[string]struct {
		known    []string
		counters string
		err      string
	}{
		secretOne:                     {[]string{secretOne}, secretOne, ""},
		" \n" + secretOne + " \r\n\n": {[]string{secretOne}, secretOne, ""},
		"# ours\n" + secretOne:        {[]string{secretOne}, secretOne, ""},
		secretTwo + "\n" + secretOne + "\ncounters " + secretOne: {[]string{secretTwo, secretOne}, secretOne, ""},
		"counters  " + secretOne + "\n" + secretTwo:              {[]string{secretTwo}, secretOne, ""},
		secretOne + "\n" + secretTwo:                             {nil, "", "2 secrets and no line `counters`"},
		secretOne + "\n" + secretOne:                             {nil, "", "line 2 repeats"},
		"short":                                                  {nil, "", "line 1 holds a secret of 5 bytes, want at least 32"},
		secretOne + "\ncounters short":                           {nil, "", "line 2 holds a secret of 5 bytes"},
		"counters " + secretOne:                                  {nil, "", "no secret"},
		"counters " + secretOne + "\ncounters " + secretTwo:      {nil, "", "line 2 is a second line"},
		"#" + secretOne:                                          {nil, "", "no secret"},
		manySecrets(17):                                          {nil, "", "line 17: more than 16"},
	} {
		s, err := parseSecrets([]byte(text))
		if want.err != "" {
			if err == nil || !strings.Contains(err.Error(), want.err) || strings.Contains(err.Error(), secretOne) {
				t.Errorf("%q: %v, want %q and no secret in it", text, err, want.err)
			}
			continue
		}
		var known []string
		for _, k := range s.known {
			known = append(known, string(k))
		}
		if err != nil || strings.Join(known, " ") != strings.Join(want.known, " ") || string(s.counters) != want.counters {
			t.Errorf("%q: %q, %q, %v", text, known, s.counters, err)
		}
	}
}

func manySecrets(n int) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(secretOne + string(rune('a'+i)) + "\n")
	}
	return text.String()
}

// The file is followed: proofs and gossip change with it, counter keys do not, and a file that would change them is a fault.
func TestSecretFileIsFollowed(t *testing.T) {
	s := testSettings(t)
	s.secret, s.secretFile = nil, writeFile(t, secretOne)
	n := startNode(t, s)
	shows := func(line string) func() bool {
		return func() bool {
			_, body := n.get(t, "/metrics")
			return strings.Contains(body, "\n"+line+"\n")
		}
	}
	primary := n.gossip.Keyring().Primary()
	if n.gossip.Keyring().Len() != 1 || len(n.proofKeys()) != 1 {
		t.Errorf("%v, %d proof keys", n.gossip.Keyring(), len(n.proofKeys()))
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(s.secretFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(secretOne + "\n" + secretTwo + "\ncounters " + secretOne)
	await(t, "both are known", func() bool { return n.gossip.Keyring().Len() == 2 && len(n.proofKeys()) == 2 })
	if n.gossip.Keyring().Primary() != primary {
		t.Error("the new key encrypts already")
	}
	put(secretTwo)
	await(t, "a fault", shows(`sluice_secrets_stale{files="secret"} 1`))
	if n.gossip.Keyring().Len() != 2 {
		t.Error("a file that changes counter keys is in force")
	}
	put(secretTwo + "\ncounters " + secretOne)
	await(t, "the new one alone", func() bool { return n.gossip.Keyring().Len() == 1 && len(n.proofKeys()) == 1 })
	if n.gossip.Keyring().Primary() == primary {
		t.Error("the old key encrypts still")
	}
}

// TestNodeWithoutTheSecret attacks a node as one that is modified at will, reaches its ports, and knows whatever hello and gossip tell, and not
// the secret: it joins nothing, learns nothing and moves nothing.
func TestNodeWithoutTheSecret(t *testing.T) {
	n := startNode(t, testSettings(t))
	peerAddr := n.listen.peer.Addr().String()

	// What gossip tells to those who ask for the members.
	conn, err := net.Dial("tcp", n.gossip.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, "\x06\x83\xa5Nodes\x00\xacUserStateLen\x00\xa4Join\xc3"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("gossip tells %d bytes (%v): %.100q", len(got), err, got)
	}
	// What a hello is answered with.
	said := greetingOf(t, peerAddr)
	if h := said.GetHello(); h == nil || said.Proof != nil || len(h.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("a hello is answered with %v", said)
	}

	// As a peer, with keys made of that.
	learned := [][]byte{said.GetHello().GetNonce(), []byte("the wrong secret")}
	for _, key := range learned {
		pool, err := peer.Open(peer.Config{
			Name: "stranger", Boot: newBoot(), Placement: ring.Placement, CountersTag: key,
			ProofKeys: func() [][]byte { return [][]byte{key} },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err = pool.Call(ctx, peerAddr, make([]check.Record, 1), make([]check.Reply, 1))
		if !errors.Is(err, check.ErrUnsent) || !strings.Contains(err.Error(), "secret not accepted") {
			t.Errorf("a record is answered with %v", err)
		}
		pool.Post(peerAddr, message.Envelope{Body: &message.Heartbeat{}})
		await(t, "mail is refused", func() bool { return strings.Contains(pool.Failure(peerAddr), "secret not accepted") })
	}

	// As a member that may found nothing beside it.
	s := testSettings(t)
	s.name, s.secret, s.join, s.bootstrapExpect = "evil", []byte(secretOne), []string{n.gossip.Addr()}, 1
	s.joinTimeout = 500 * time.Millisecond
	evil := startNodeUnready(t, s, func(e *node) {
		d := *e.inForce.Load()
		d.proofs = learned
		e.inForce.Store(&d)
	})
	await(t, "rejected", func() bool {
		_, reasons := evil.ready()
		return strings.Contains(strings.Join(reasons, "; "), "secret or keyring differs")
	})
	await(t, "the node says so", func() bool { return n.gossip.Stats().Malformed > 0 })
	if ok, _ := evil.ready(); ok || len(evil.gossip.View().Members) != 1 || evil.cluster.Stats().Partitions.Holding != 0 {
		t.Errorf("the stranger is ready: %v, sees %v, holds %d partitions", ok, evil.gossip.View().Members, evil.cluster.Stats().Partitions.Holding)
	}
	if v := n.gossip.View().Members; len(v) != 1 || n.cluster.Stats().Partitions.Holding != ring.DefaultPartitions {
		t.Errorf("the node sees %v and holds %d partitions", v, n.cluster.Stats().Partitions.Holding)
	}
	if s := n.peerServer.Stats(); s.Records+s.Delivered != 0 || s.Refused < 4 {
		t.Errorf("the peer port: %+v", s)
	}
}

// greetingOf is what a peer port answers to a hello.
func greetingOf(t *testing.T, addr string) *peerv1.Greeting {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := peerv1.NewPeerServiceClient(conn).Mail(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&peerv1.Post{Hello: &peerv1.Hello{
		Major: peer.Major, Minor: peer.Minor, Name: "stranger", Boot: newBoot(), Placement: ring.Placement, Nonce: bytes.Repeat([]byte{1}, 32),
	}}); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A node with another secret is told so over the peer hello, says so itself, and is not ready, whatever gossip does.
func TestAnotherSecret(t *testing.T) {
	for name, keyring := range map[string]string{"gossip keyed by the secret": "", "gossip with a keyring of its own": keyOne} {
		t.Run(name, func(t *testing.T) {
			s := testSettings(t)
			if keyring != "" {
				s.gossipKeyring = writeFile(t, keyring)
			}
			first := startNode(t, s)
			s.name, s.secret, s.bind = "n2", []byte(secretOne), "127.0.0.2"
			s.join, s.bootstrapExpect, s.joinTimeout = []string{first.gossip.Addr()}, 1, 500*time.Millisecond
			s.peerPort = uint16(first.listen.peer.Addr().(*net.TCPAddr).Port) // as clusters have it
			other := startNodeUnready(t, s)
			await(t, "told", func() bool {
				_, reasons := other.ready()
				return strings.Contains(strings.Join(reasons, "; "), "secret not accepted")
			})
			time.Sleep(2 * s.joinTimeout) // in which it would have become ready
			if code, body := other.get(t, "/readyz"); code == http.StatusOK || !strings.Contains(body, "secret not accepted") {
				t.Errorf("/readyz answers %d: %s", code, body)
			}
			if held := other.cluster.Stats().Partitions.Holding; held != 0 || first.peerServer.Stats().Refused == 0 {
				t.Errorf("it holds %d partitions; %+v", held, first.peerServer.Stats())
			}
		})
	}
}
