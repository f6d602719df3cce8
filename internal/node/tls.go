package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-project/sluice/internal/certs"
)

// What --peer-tls says.
const (
	peerOff     = "off"     // connections between nodes are plain
	peerAccept  = "accept"  // TLS and plain are taken; TLS is dialed, or plain where the other node does not speak it
	peerRequire = "require" // TLS alone
)

// peerMode is --peer-tls with its default.
func (t *TLS) peerMode() string {
	switch {
	case t.Peers != "":
		return t.Peers
	case t.PeerCert != "":
		return peerRequire
	}
	return peerOff
}

// identities are the certificates that a node shows, nil where its ports are plain.
type identities struct {
	apis, peers *certs.Source
	// Handshakes that failed, by port.
	failedGRPC, failedHTTP, failedPeer atomic.Uint64
}

// openIdentities reads the certificates.
func (n *Node) openIdentities() (err error) {
	t := n.config.TLS
	version, err := certs.ParseVersion(t.MinVersion)
	if err != nil {
		return fmt.Errorf("--tls-min-version: %w", err)
	}
	auth, err := certs.ParseClientAuth(t.ClientAuth)
	if err != nil {
		return fmt.Errorf("--tls-client-auth: %w", err)
	}
	if t.Cert != "" {
		n.tls.apis, err = certs.Open(certs.Config{
			Cert: t.Cert, Key: t.Key, CA: t.ClientCA, Auth: auth, MinVersion: version,
			Flags: [3]string{"--tls-cert", "--tls-key", "--tls-client-ca"}, Log: n.log,
		})
		if err != nil {
			return err
		}
		n.secrets = append(n.secrets, secretFiles{"tls", n.tls.apis.Files(), n.tls.apis})
	}
	if t.peerMode() != peerOff {
		n.tls.peers, err = certs.Open(certs.Config{
			Cert: t.PeerCert, Key: t.PeerKey, CA: t.PeerCA, Mutual: true, Name: certs.NameOf(t.PeerName, n.config.Name), MinVersion: version,
			Flags: [3]string{"--peer-tls-cert", "--peer-tls-key", "--peer-tls-ca"}, Log: n.log,
		})
		if err != nil {
			return err
		}
		n.secrets = append(n.secrets, secretFiles{"peer_tls", n.tls.peers.Files(), n.tls.peers})
	}
	if t.peerMode() == peerAccept {
		n.log.Warn("--peer-tls=accept: connections between nodes need no TLS and no certificate; go on to require, or off, when all nodes have it")
	}
	return nil
}

// grpcCreds are what secures the gRPC port, nil where it is plain.
func (n *Node) grpcCreds() credentials.TransportCredentials {
	if n.tls.apis == nil {
		return nil
	}
	creds := credentials.NewTLS(n.tls.apis.Server("h2"))
	return &countingCreds{TransportCredentials: creds, port: "gRPC", failed: &n.tls.failedGRPC, log: n.log}
}

// httpListener is the HTTP port with TLS, if that is on.
func (n *Node) httpListener(l net.Listener) net.Listener {
	if n.tls.apis == nil {
		return l
	}
	auth, _ := certs.ParseClientAuth(n.config.TLS.ClientAuth) // validated
	if auth == certs.RequireClient {
		auth = certs.RequestClient // probes have none: withClient rejects the others
	}
	return tls.NewListener(l, n.tls.apis.ServerAsking(auth, "h2", "http/1.1"))
}

// withTLS prepares the HTTP server for TLS, if that is on.
func (n *Node) withTLS(s *http.Server) {
	s.ErrorLog = slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)
	if n.tls.apis == nil {
		return
	}
	s.Protocols.SetHTTP2(true)
	s.ErrorLog = log.New(&handshakeLines{failed: &n.tls.failedHTTP, rest: s.ErrorLog}, "", 0)
	if n.config.TLS.ClientAuth == "require" {
		s.Handler = withClient(s.Handler)
	}
}

// openPaths are paths that ask nobody for a certificate: whoever probes a node for a scheduler has none, and they
// tell nothing but whether it is well.
var openPaths = map[string]bool{"/healthz": true, "/readyz": true}

// withClient rejects requests without a certificate. One that is shown was verified in the handshake.
func withClient(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !openPaths[r.URL.Path] && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"code":"unauthenticated","message":"a client certificate is required"}}` + "\n"))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// peerCreds are what secures connections between nodes, both ways, nil where they are plain.
func (n *Node) peerCreds() credentials.TransportCredentials {
	if n.tls.peers == nil {
		return nil
	}
	return &peerCredentials{
		countingCreds{
			TransportCredentials: credentials.NewTLS(n.tls.peers.Server("h2")), port: "peer", failed: &n.tls.failedPeer, log: n.log,
		},
		credentials.NewTLS(n.tls.peers.Client("h2")),
		n.config.TLS.peerMode() == peerAccept,
	}
}

// peerCredentials are a server's that are a client's as well.
type peerCredentials struct {
	countingCreds
	client credentials.TransportCredentials
	// plain: connections without TLS are taken, and made to nodes that do not speak it.
	plain bool
}

// noTLS are the credentials of connections without.
var noTLS = insecure.NewCredentials()

// ClientHandshake implements credentials.TransportCredentials.
func (c *peerCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := c.client.ClientHandshake(ctx, authority, conn)
	// A node without TLS answers what it takes for HTTP/2. A wrong certificate is never a reason to do without.
	if _, other := errors.AsType[tls.RecordHeaderError](err); !other || !c.plain {
		return secured, info, err
	}
	_ = conn.Close() // it has got a handshake
	if conn, err = new(net.Dialer).DialContext(ctx, "tcp", conn.RemoteAddr().String()); err != nil {
		return nil, nil, err
	}
	return noTLS.ClientHandshake(ctx, authority, conn)
}

// handshakeRecord is the first byte of a client that speaks TLS (RFC 8446, 5.1).
const handshakeRecord = 22

// ServerHandshake implements credentials.TransportCredentials.
func (c *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !c.plain {
		return c.countingCreds.ServerHandshake(conn)
	}
	again := &replayed{Conn: conn, early: make([]byte, 1)}
	if _, err := io.ReadFull(conn, again.early); err != nil {
		return nil, nil, err
	}
	if again.early[0] == handshakeRecord {
		return c.countingCreds.ServerHandshake(again)
	}
	return noTLS.ServerHandshake(again)
}

// replayed is a connection of which the first bytes were read already. One goroutine reads at a time.
type replayed struct {
	net.Conn
	early []byte
}

func (c *replayed) Read(p []byte) (int, error) {
	if len(c.early) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.early)
	c.early = c.early[n:]
	return n, nil
}

// Clone implements credentials.TransportCredentials. What is counted is counted together.
func (c *peerCredentials) Clone() credentials.TransportCredentials { return c }

// countingCreds counts the handshakes that fail on a gRPC port and logs why.
type countingCreds struct {
	credentials.TransportCredentials
	port   string
	failed *atomic.Uint64
	log    *slog.Logger
	quiet  quietly
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *countingCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		c.failed.Add(1)
		c.quiet.say(c.log, "TLS handshake failed", "port", c.port, "from", conn.RemoteAddr().String(), "error", err)
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials. Nothing here changes but counts.
func (c *countingCreds) Clone() credentials.TransportCredentials { return c }

// quietly logs a line as a warning once in ten seconds and otherwise at debug: whoever is rejected keeps trying.
type quietly struct{ last atomic.Int64 }

func (q *quietly) say(l *slog.Logger, text string, args ...any) {
	now, last := time.Now().UnixNano(), q.last.Load()
	if now-last >= int64(10*time.Second) && q.last.CompareAndSwap(last, now) {
		l.Warn(text, args...)
		return
	}
	l.Debug(text, args...)
}

// handshakeLines counts net/http's lines about handshakes that failed.
type handshakeLines struct {
	failed *atomic.Uint64
	rest   *log.Logger
}

// Write takes one line.
func (h *handshakeLines) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {
		h.failed.Add(1)
	}
	h.rest.Print(string(line))
	return len(line), nil
}

// checkPeerName reports why the other end of a connection between nodes is not the node that it says it is.
func (n *Node) checkPeerName(name string, auth credentials.AuthInfo) error {
	info, ok := auth.(credentials.TLSInfo)
	if !ok && n.config.TLS.peerMode() == peerAccept {
		return nil
	}
	if !ok {
		return errors.New("its connection is not encrypted")
	}
	return certs.CheckNode(info.State, certs.NameOf(n.config.TLS.PeerName, name))
}
