package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/transport/peer"
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
		if got := fmt.Sprintf("%s %s", s.known, s.counters); err != nil || got != fmt.Sprintf("%s %s", want.known, want.counters) {
			t.Errorf("%q: %s, %v", text, got, err)
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

// TestSecretFile: proofs and gossip change with it, counter keys do not, and a file that would change them is a fault.
func TestSecretFile(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	s.Secret, s.SecretFile = nil, writeFile(t, secretOne)
	n := startNode(t, s)
	first := n.gossip.Keyring().Primary()
	for _, step := range []struct {
		text         string
		known, stale int
		first        bool // the first key encrypts
	}{
		{secretOne, 1, 0, true},
		{secretOne + "\n" + secretTwo + "\ncounters " + secretOne, 2, 0, true},
		{secretTwo, 2, 1, true},
		{secretTwo + "\ncounters " + secretOne, 1, 0, false},
	} {
		n.put(t, s.SecretFile, step.text)
		if keys := n.gossip.Keyring(); keys.Len() != step.known || len(n.proofKeys()) != step.known || (keys.Primary() == first) != step.first {
			t.Errorf("%q: %v, %d proof keys", step.text, keys, len(n.proofKeys()))
		}
		n.metric(t, fmt.Sprintf(`sluice_secrets_stale{files="secret"} %d`, step.stale))
	}
}

// put writes a file that the node follows, and has it read at once.
func (r *running) put(t *testing.T, path, text string) {
	t.Helper()
	do(t, os.WriteFile(path, []byte(text), 0o600))
	r.Reload(t.Context())
}

// TestNodeWithoutTheSecret attacks a node as one that is modified at will, reaches its ports, and knows whatever hello and gossip tell, and not
// the secret: it joins nothing, learns nothing and moves nothing.
func TestNodeWithoutTheSecret(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t))
	peerAddr := n.listen.peer.Addr().String()

	// What gossip tells to those who ask for the members.
	conn, err := net.Dial("tcp", n.gossip.Addr())
	do(t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
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
			Name: "outsider", Boot: newBoot(), Placement: ring.Placement, CountersTag: key,
			ProofKeys: func() [][]byte { return [][]byte{key} },
		})
		do(t, err)
		defer pool.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = pool.Call(ctx, peerAddr, make([]check.Record, 1), make([]check.Reply, 1))
		if !errors.Is(err, check.ErrUnsent) || !strings.Contains(err.Error(), "secret not accepted") {
			t.Errorf("a record is answered with %v", err)
		}
		pool.Post(peerAddr, message.Envelope{Body: &message.Heartbeat{}})
		await(t, "the control stream is rejected", func() bool { return strings.Contains(pool.Failure(peerAddr), "secret not accepted") })
	}

	// As a member that may found nothing beside it.
	s := testConfig(t)
	s.Name, s.Secret, s.Join, s.BootstrapExpect = "evil", []byte(secretOne), []string{n.gossip.Addr()}, 1
	s.JoinTimeout = 500 * time.Millisecond
	evil := startNodeUnready(t, s, func(e *Node) {
		d := *e.secretKeys.Load()
		d.proofs = learned
		e.secretKeys.Store(&d)
	})
	await(t, "rejected", func() bool {
		_, reasons := evil.Ready()
		return strings.Contains(strings.Join(reasons, "; "), "secret or keyring differs")
	})
	await(t, "the node says so", func() bool { return n.gossip.Stats().Malformed > 0 })
	if ok, _ := evil.Ready(); ok || len(evil.gossip.View().Members) != 1 || evil.cluster.Stats().Partitions.Owned != 0 {
		t.Errorf("the unauthenticated client is ready: %v, sees %v, holds %d partitions", ok, evil.gossip.View().Members, evil.cluster.Stats().Partitions.Owned)
	}
	if v := n.gossip.View().Members; len(v) != 1 || n.cluster.Stats().Partitions.Owned != ring.DefaultPartitions {
		t.Errorf("the node sees %v and holds %d partitions", v, n.cluster.Stats().Partitions.Owned)
	}
	if s := n.peerServer.Stats(); s.Records+s.Delivered != 0 || s.Rejected < 4 {
		t.Errorf("the peer port: %+v", s)
	}
}

// greetingOf is what a peer port answers to a hello.
func greetingOf(t *testing.T, addr string) *peerv1.Greeting {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	do(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := peerv1.NewPeerServiceClient(conn).Control(ctx)
	do(t, err)
	if err := stream.Send(&peerv1.MessageFrame{Hello: &peerv1.Hello{
		Major: peer.Major, Minor: peer.Minor, Name: "outsider", Boot: newBoot(), Placement: ring.Placement, Nonce: bytes.Repeat([]byte{1}, 32),
	}}); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	do(t, err)
	return m
}

// triesFurther waits until the node has had its time for joining, after which it would found a cluster, and has tried in vain since.
func (r *running) triesFurther(t *testing.T) {
	t.Helper()
	await(t, "at the end of its time for joining", func() bool { return r.warned.count("no join target answered: trying further") == 1 })
	tried := r.gossip.Stats().JoinsFailed
	await(t, "trying further", func() bool { return r.gossip.Stats().JoinsFailed >= tried+3 })
}

// A node with another secret is told so over the peer hello, says so itself, and is not ready, whatever gossip does.
func TestAnotherSecret(t *testing.T) {
	t.Parallel()
	for name, keyring := range map[string]string{"gossip keyed by the secret": "", "gossip with a keyring of its own": keyOne} {
		t.Run(name, func(t *testing.T) {
			s := testConfig(t)
			if keyring != "" {
				s.GossipKeyring = writeFile(t, keyring)
			}
			first := startNode(t, s)
			s.Name, s.Secret, s.Bind = "n2", []byte(secretOne), "127.0.0.2"
			s.Join, s.BootstrapExpect, s.JoinTimeout = []string{first.gossip.Addr()}, 1, 500*time.Millisecond
			s.PeerPort = uint16(first.listen.peer.Addr().(*net.TCPAddr).Port) // as clusters have it
			other := startNodeUnready(t, s)
			await(t, "told", func() bool {
				_, reasons := other.Ready()
				return strings.Contains(strings.Join(reasons, "; "), "secret not accepted")
			})
			if keyring == "" {
				other.triesFurther(t)
			} else { // it has joined at once
				rejected := first.peerServer.Stats().Rejected
				await(t, "rejected again", func() bool { return first.peerServer.Stats().Rejected >= rejected+3 })
			}
			if code, body := other.get(t, "/readyz"); code == http.StatusOK || !strings.Contains(body, "secret not accepted") {
				t.Errorf("/readyz answers %d: %s", code, body)
			}
			if held := other.cluster.Stats().Partitions.Owned; held != 0 || first.peerServer.Stats().Rejected == 0 {
				t.Errorf("it holds %d partitions; %+v", held, first.peerServer.Stats())
			}
		})
	}
}

// TestJoinAtAnotherPort: a node whose --join names another port than that of gossip is not ready, and says which port is wanted.
func TestJoinAtAnotherPort(t *testing.T) {
	t.Parallel()
	first := startNode(t, testConfig(t))
	for name, target := range map[string]net.Listener{"gRPC": first.listen.grpc, "HTTP": first.listen.http} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testConfig(t)
			s.Name, s.Join, s.BootstrapExpect = "n2", []string{target.Addr().String()}, 3
			s.JoinTimeout = 500 * time.Millisecond
			n := startNodeUnready(t, s)
			await(t, "told", func() bool {
				ok, reasons := n.Ready()
				return !ok && strings.Contains(strings.Join(reasons, "; "), "gossip port") && strings.Contains(strings.Join(reasons, "; "), "7463 by default")
			})
			if owned := n.cluster.Stats().Partitions.Owned; owned != 0 {
				t.Errorf("it owns %d partitions", owned)
			}
		})
	}
}

const (
	keyOne = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=\n"
	keyTwo = "MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI=\n"
)

// A file that a node cannot use is named with its flag and its fault, and is not shown.
func TestWrongFiles(t *testing.T) {
	token, _ := testToken(t, 5)
	ours := newPapers(t)
	cert, key, ca := ours.files(t, "n2")
	keyring := func(path string) func(*Config) { return func(c *Config) { c.GossipKeyring = path } }
	callers := func(path string) func(*Config) { return func(c *Config) { c.Callers = path } }
	for want, change := range map[string]func(*Config){
		"--gossip-keyring: |no such file":               keyring("/nowhere"),
		"--gossip-keyring: |line 2 is not base64":       keyring(writeFile(t, keyOne+"secret?\n")),
		"--gossip-keyring: |line 1 is a key of 3 bytes": keyring(writeFile(t, "YWJj\n")),
		"--callers: |no such file":                      callers("/nowhere"),
		"--callers: |:1: unknown: unknown key":          callers(writeFile(t, "unknown: 1\n")),
		"--callers: |is a token itself": callers(writeFile(t,
			"callers:\n  - {name: a, tokens: ["+token+"], grants: [{domains: [a], verbs: [check]}]}\n")),
		"--tls-cert: ":     func(c *Config) { c.TLS.Cert, c.TLS.Key = "/nowhere", "/nowhere" },
		"--tls-key: ":      func(c *Config) { c.TLS.Cert, c.TLS.Key = cert, "/nowhere" },
		`not one for "n1"`: func(c *Config) { c.TLS.PeerCert, c.TLS.PeerKey, c.TLS.PeerCA = cert, key, ca },
	} {
		s := testConfig(t)
		change(&s)
		n, err := Open(t.Context(), s, slog.New(slog.DiscardHandler))
		if err == nil {
			n.closeParts()
		}
		flag, why, _ := strings.Cut(want, "|")
		if text := fmt.Sprint(err); !strings.Contains(text, flag) || !strings.Contains(text, why) || strings.Contains(text, "secret?") || strings.Contains(text, token) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Two nodes with a key find each other, and one with another key is rejected: it is alive, says why, and is not ready. A keyring that
// changes is in force; one with a fault changes nothing and shows.
func TestKeyringOfACluster(t *testing.T) {
	t.Parallel()
	nodes := together(t, 2, func(c *Config) { c.GossipKeyring = writeFile(t, keyOne) })
	await(t, "joined", func() bool { return len(nodes[0].gossip.View().Members) == 2 })
	s := testConfig(t)
	s.Name, s.GossipKeyring, s.Join, s.JoinTimeout = "n3", writeFile(t, keyTwo), []string{nodes[0].gossip.Addr()}, 500*time.Millisecond
	s.BootstrapExpect = 1 // which it may not do beside a cluster that rejects it
	n := startNodeUnready(t, s)
	await(t, "rejected", func() bool {
		_, reasons := n.Ready()
		return strings.Contains(strings.Join(reasons, "; "), "rejected by "+nodes[0].gossip.Addr())
	})
	n.triesFurther(t)
	if v := n.gossip.View(); len(v.Members) != 1 {
		t.Errorf("the node with another key sees %v", v.Members)
	}
	if code, _ := n.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	if code, body := n.get(t, "/readyz"); code == http.StatusOK || !strings.Contains(body, "secret or keyring differs") {
		t.Errorf("/readyz answers %d: %s", code, body)
	}

	first := nodes[0]
	first.metric(t, `sluice_gossip_keys{primary="8a83665f"} 1`)
	first.put(t, first.config.GossipKeyring, keyTwo+keyOne)
	first.put(t, first.config.GossipKeyring, "secret?")
	first.metric(t, `sluice_secrets_stale{files="gossip_keyring"} 1`)
	if keys := first.gossip.Keyring(); keys.Len() != 2 {
		t.Errorf("exchanged, and then a faulty file: %v", keys)
	}
}

// Whatever a secret file says, it has secrets that are long enough, or is rejected without showing one.
func FuzzParseSecrets(f *testing.F) {
	f.Add(secretOne)
	f.Add(secretTwo + "\n" + secretOne + "\ncounters " + secretOne)
	f.Add("# none\ncounters\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSecrets([]byte(text))
		if err != nil {
			return
		}
		for _, secret := range append(s.known, s.counters) {
			if len(secret) < limiter.MinSecret || strings.Contains(string(secret), "\n") {
				t.Errorf("%q has the secret %q", text, secret)
			}
		}
		if d, err := s.derive(); err != nil || len(d.proofs) != len(s.known) || d.gossip.Len() != len(s.known) {
			t.Errorf("%q: %d proof keys, %v, %v", text, len(d.proofs), d.gossip, err)
		}
	})
}

// TestCallersChange: a file that changes is in force on open streams too; one with a fault changes nothing and shows.
func TestCallersChange(t *testing.T) {
	t.Parallel()
	n, bearers := startGuarded(t)
	s := newOutsider(t, n)
	stream, err := s.api().CheckStream(s.with(bearers["check"]))
	do(t, err)
	ask := func() error {
		_ = stream.Send(checksOf("a", "user", "u", 0)) // Recv says why it failed
		_, err := stream.Recv()
		return err
	}
	do(t, ask())
	n.put(t, n.config.Callers, "callers: [")
	n.metric(t, `sluice_secrets_stale{files="callers"} 1`)
	if err := ask(); err != nil {
		t.Errorf("under a faulty file: %v", err)
	}
	_, digest := testToken(t, 0x77)
	n.put(t, n.config.Callers, "callers: [{name: other, tokens: ["+digest+"], grants: [{domains: [a], verbs: [check]}]}]\n")
	if err := ask(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the stream ended with %v", err)
	}
}

// TestCertificatesAreCallers: over TLS a name in a certificate that the node's authority has signed is a caller, by gRPC and by
// HTTP; one that it has not signed is none.
func TestCertificatesAreCallers(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	p := newPapers(t)
	p.withAPITLS(t, &s, "request")
	token, digest := testToken(t, 1)
	s.Callers = writeFile(t, `
callers:
  - {name: shop, certificates: ["dns:shop.example"], grants: [{domains: [auth], verbs: [check]}]}
  - {name: bank, certificates: ["dns:bank.example"], tokens: [`+digest+`], grants: [{domains: [bank], verbs: [check]}]}
`)
	n := startNode(t, s)
	other := newPapers(t)
	for _, c := range []struct {
		name string
		show []tls.Certificate
		want codes.Code // codes.Unknown: the handshake fails
	}{
		{"shop", []tls.Certificate{p.pair(t, time.Hour, "shop.example")}, codes.OK},
		{"bank", []tls.Certificate{p.pair(t, time.Hour, "bank.example")}, codes.PermissionDenied},
		{"nobody's name", []tls.Certificate{p.pair(t, time.Hour, "who.example")}, codes.Unauthenticated},
		{"shop by another authority", []tls.Certificate{other.pair(t, time.Hour, "shop.example")}, codes.Unknown},
		{"none", nil, codes.Unauthenticated},
	} {
		got := status.Code(askGRPC(t, n.listen.grpc.Addr().String(), credentials.NewTLS(p.client(c.show...))))
		if got != c.want && !(c.want == codes.Unknown && got == codes.Unavailable) {
			t.Errorf("gRPC, %s: %v, want %v", c.name, got, c.want)
		}
		code, _, err := askHTTP(t, n.listen.http.Addr().String(), "/admin/v1alpha1/members", p.client(c.show...))
		want := map[codes.Code]int{codes.OK: 200, codes.PermissionDenied: 200, codes.Unauthenticated: 401}[c.want]
		if code != want || (err != nil) != (c.want == codes.Unknown) {
			t.Errorf("HTTP, %s: %d, %v", c.name, code, err)
		}
	}
	// A token goes before a certificate, and is shown to anybody over TLS.
	conn, err := grpc.NewClient(n.listen.grpc.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(p.client(p.pair(t, time.Hour, "shop.example")))),
		grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(sluice.Token(token), false)))
	do(t, err)
	defer conn.Close()
	_, err = sluicev1.NewRateLimitServiceClient(conn).Check(t.Context(), checksOf("bank", "user", "u", 0))
	if err != nil {
		t.Errorf("bank's token with shop's certificate: %v", err)
	}
}
