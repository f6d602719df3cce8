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

	"github.com/sluicecluster/sluice/internal/certs"
	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
)

// The values of --peer-tls.
const (
	peerOff     = "off"     // connections between nodes are plain
	peerAccept  = "accept"  // TLS and plain are accepted; TLS is dialed, or plain if the other node has none
	peerRequire = "require" // only TLS
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

// identities are the certificates of a node, nil for plain ports.
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
	open := func(label string, c certs.Config) (*certs.Source, error) {
		c.MinVersion, c.Log = version, n.log
		s, err := certs.Open(c)
		if err == nil {
			n.secrets = append(n.secrets, secretFiles{label, s.Files(), s})
		}
		return s, err
	}
	if t.Cert != "" {
		if n.tls.apis, err = open("tls", certs.Config{
			Cert: t.Cert, Key: t.Key, CA: t.ClientCA, Auth: auth, Flags: [3]string{"--tls-cert", "--tls-key", "--tls-client-ca"},
		}); err != nil {
			return err
		}
	}
	if t.peerMode() != peerOff {
		if n.tls.peers, err = open("peer_tls", certs.Config{
			Cert: t.PeerCert, Key: t.PeerKey, CA: t.PeerCA, Mutual: true, Name: certs.NameOf(t.PeerName, n.config.Name, n.config.Region),
			Flags: [3]string{"--peer-tls-cert", "--peer-tls-key", "--peer-tls-ca"},
		}); err != nil {
			return err
		}
	}
	if t.peerMode() == peerAccept {
		n.log.Warn("--peer-tls=accept: connections between nodes need no TLS and no certificate; set require, or off, when all nodes have accept")
	}
	return nil
}

// grpcCreds secure the gRPC port; nil if it is plain.
func (n *Node) grpcCreds() credentials.TransportCredentials {
	if n.tls.apis == nil {
		return nil
	}
	return newCountingCreds(n.tls.apis, "gRPC", &n.tls.failedGRPC, n.log)
}

// httpListener is l with TLS if that is on.
func (n *Node) httpListener(l net.Listener) net.Listener {
	if n.tls.apis == nil {
		return l
	}
	auth, _ := certs.ParseClientAuth(n.config.TLS.ClientAuth) // validated
	if auth == certs.RequireClient {
		auth = certs.RequestClient // probes have no certificate: withClient rejects other requests without
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

// openPaths need no certificate: probes of schedulers have none.
var openPaths = map[string]bool{"/healthz": true, "/readyz": true}

// withClient rejects requests without a certificate. The handshake has verified certificates.
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

// peerCreds secure connections between nodes, as server and as client; nil if they are plain.
func (n *Node) peerCreds() credentials.TransportCredentials {
	if n.tls.peers == nil {
		return nil
	}
	return &peerCredentials{
		newCountingCreds(n.tls.peers, "peer", &n.tls.failedPeer, n.log),
		credentials.NewTLS(n.tls.peers.Client("h2")),
		n.config.TLS.peerMode() == peerAccept,
	}
}

// peerCredentials are those of a server and of a client.
type peerCredentials struct {
	*countingCreds
	client credentials.TransportCredentials
	plain  bool // connections without TLS are accepted, and made to nodes that have none
}

var noTLS = insecure.NewCredentials()

// ClientHandshake implements credentials.TransportCredentials.
func (c *peerCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := c.client.ClientHandshake(ctx, authority, conn)
	// A node without TLS answers with HTTP/2. After any other error, such as a wrong certificate, there is no plain connection.
	if _, other := errors.AsType[tls.RecordHeaderError](err); !other || !c.plain {
		return secured, info, err
	}
	_ = conn.Close() // the other end has read a handshake
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

// replayed is a connection whose first bytes were read before. One goroutine reads at a time.
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

// Clone implements credentials.TransportCredentials. Clones share the counts.
func (c *peerCredentials) Clone() credentials.TransportCredentials { return c }

// countingCreds counts the handshakes that fail on a gRPC port and logs why.
type countingCreds struct {
	credentials.TransportCredentials
	port   string
	failed *atomic.Uint64
	log    *slog.Logger
	quiet  *loglimit.Limiter
}

func newCountingCreds(s *certs.Source, port string, failed *atomic.Uint64, log *slog.Logger) *countingCreds {
	return &countingCreds{credentials.NewTLS(s.Server("h2")), port, failed, log, loglimit.New(10 * time.Second)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *countingCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		c.failed.Add(1)
		level := slog.LevelDebug
		if c.quiet.Allow(time.Now(), c.port) { // rejected clients keep trying
			level = slog.LevelWarn
		}
		c.log.Log(context.Background(), level, "TLS handshake failed", "port", c.port, "from", conn.RemoteAddr().String(), "error", err)
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials. Clones share the counts.
func (c *countingCreds) Clone() credentials.TransportCredentials { return c }

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

// checkPeerName returns an error unless the certificate of the other end of a connection between nodes is that of the named node, of the
// region if --peer-tls-name has one.
func (n *Node) checkPeerName(name, region string, auth credentials.AuthInfo) error {
	info, ok := auth.(credentials.TLSInfo)
	if !ok && n.config.TLS.peerMode() == peerAccept {
		return nil
	}
	if !ok {
		return errors.New("its connection is not encrypted")
	}
	return certs.CheckNode(info.State, certs.NameOf(n.config.TLS.PeerName, name, region))
}
