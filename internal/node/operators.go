package node

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/internal/operators"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/httpapi"
)

// openOperators opens the operators' socket, and makes the token of the admin port. A default directory may fail: then only
// callers with the verb admin operate the node.
func (n *Node) openOperators() error {
	a := &n.config.Admin
	place, err := operators.Open(a.Dir, n.listen.grpc.Addr().String())
	switch {
	case err == nil:
		n.operators.place = place
	case a.Dir != "" || n.listen.admin != nil:
		return fmt.Errorf("--operators-dir: %w", err)
	default:
		n.log.Warn("no socket for operators: commands such as `sluice top` reach this node with --callers only; name a writable directory with --operators-dir", "error", err)
	}
	if n.listen.admin == nil {
		return nil
	}
	token, err := access.NewToken(rand.Reader)
	if err != nil {
		return err
	}
	n.operators.token, _ = access.DigestOf(token)
	if err := place.PutToken(token, reachable(n.listen.admin)); err != nil {
		return fmt.Errorf("--operators-dir: %w", err)
	}
	return nil
}

// reachable returns the address of l for clients on this machine.
func reachable(l net.Listener) string {
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	if addr.Addr().IsUnspecified() {
		addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	}
	return addr.String()
}

// operatorsServer serves the operators' socket and the admin port.
type operatorsServer struct {
	place *operators.Place // nil if there is none
	token access.Digest
	grpc  *grpc.Server
	http  *http.Server
}

// hide closes the socket to new connections and removes the files, before the gRPC port is free for another process.
func (o *operatorsServer) hide() {
	if o.place != nil {
		o.place.Close()
	}
}

func (o *operatorsServer) close() {
	if o.http != nil {
		o.http.Close()
		o.grpc.Stop()
	}
	o.hide()
}

// serveOperators makes the servers. api is the HTTP port's handler.
func (n *Node) serveOperators(api http.Handler) {
	// It has no listener: the HTTP server passes requests to it.
	n.operators.grpc = grpc.NewServer(append(n.grpcAPI.HTTPOptions(), grpc.NumStreamWorkers(0))...)
	n.grpcAPI.Register(n.operators.grpc)
	mux := operatorsTools(n.config.Admin.Level, n.log)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			n.operators.grpc.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
	atPort := httpapi.OwnPages(n.config.Admin.Hosts, n.identified(mux))
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	n.operators.http = &http.Server{
		Handler: httpapi.Drained(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
				mux.ServeHTTP(w, r.WithContext(access.AsOperator(r.Context())))
				return
			}
			atPort.ServeHTTP(w, r)
		})),
		Protocols: &p, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, // a profile may take a minute
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
}

// identified passes on requests with the operators' token, and those of callers with the verb admin.
func (n *Node) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := access.OfRequest(r); id.Has(n.operators.token) {
			r = r.WithContext(access.AsOperator(r.Context()))
			r.Header.Del("Authorization") // it is not a caller's token
		} else if rejected := n.mayOperate(r); rejected != nil {
			httpapi.Reject(w, rejected)
			return
		}
		next.ServeHTTP(w, r)
	})
}

var errNoToken = &limiter.Error{Code: limiter.Unauthenticated, Message: "the admin port wants the operators' token (Authorization: Bearer), which the node has put beside its operators' socket, see --operators-dir; " +
	"or, with --callers, the token of a caller with the verb admin"}

// mayOperate returns nil if r is of a caller with the verb admin.
func (n *Node) mayOperate(r *http.Request) *limiter.Error {
	if n.guard.Open() {
		return errNoToken
	}
	pass, rejected := n.guard.Request(r, limiter.HTTPAPI)
	if rejected != nil {
		return rejected
	}
	return pass.May(access.Admin, "")
}

const maxProfile = time.Minute // or trace

// operatorsTools are Go's profiler and, where level is not nil, the log level.
func operatorsTools(level *slog.LevelVar, log *slog.Logger) *http.ServeMux {
	profiles := http.NewServeMux()
	profiles.HandleFunc("/debug/pprof/", pprof.Index)
	profiles.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
	profiles.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/pprof/symbol" { // which takes a body, and no seconds
			if s := r.FormValue("seconds"); s != "" {
				if seconds, err := strconv.ParseFloat(s, 64); err != nil || !(seconds >= 0 && seconds <= maxProfile.Seconds()) {
					http.Error(w, fmt.Sprintf("seconds: %q; want 0 to %v", s, maxProfile.Seconds()), http.StatusBadRequest)
					return
				}
			}
		}
		profiles.ServeHTTP(w, r)
	})
	if level != nil {
		get := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, strings.ToLower(level.Level().String())) }
		mux.HandleFunc("GET /loglevel", get)
		mux.HandleFunc("PUT /loglevel", func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
			if err != nil {
				http.Error(w, "want one of debug, info, warn, error", http.StatusBadRequest)
				return
			}
			next, err := ParseLevel(strings.TrimSpace(string(body)))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if before := level.Level(); before != next {
				level.Set(next)
				log.Warn("log level changed", "from", before, "to", next)
			}
			get(w, r)
		})
	}
	return mux
}

// ParseLevel reads debug, info, warn or error.
func ParseLevel(text string) (l slog.Level, err error) {
	if err := l.UnmarshalText([]byte(text)); err != nil || strings.ContainsAny(text, "+-") { // error+4 would hide errors
		return 0, fmt.Errorf("%q is none of debug, info, warn, error", text)
	}
	return l, nil
}
