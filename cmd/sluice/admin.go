package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// adminSettings say where the operators' port is. It is for people on this machine: whoever reaches it
// reads the process's memory and changes what it logs, and nobody is asked who they are.
type adminSettings struct {
	addr      string
	anywhere  bool
	pprofAddr string // as addr, from before there was one
	// level is what PUT /loglevel changes; nil where somebody else made the logger.
	level *slog.LevelVar
}

func (a *adminSettings) register(f *pflag.FlagSet) {
	f.StringVar(&a.addr, "admin-addr", "", "loopback `address` (host:port) for operators: Go's profiler and the log level, for example 127.0.0.1:7464; off by default")
	f.BoolVar(&a.anywhere, "admin-anywhere", false, "allow an --admin-addr that other machines reach: nobody is asked who they are there")
	f.StringVar(&a.pprofAddr, "pprof-addr", "", "`address` of the profiler; the name that --admin-addr had before")
}

func (a *adminSettings) validate() error {
	var errs []error
	for _, one := range []struct{ flag, addr string }{{"admin-addr", a.addr}, {"pprof-addr", a.pprofAddr}} {
		if one.addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(one.addr); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", one.flag, err))
		}
	}
	if a.addr != "" && a.pprofAddr != "" {
		errs = append(errs, errors.New("--pprof-addr: --admin-addr has the profiler; give that alone"))
	}
	if a.addr != "" && !a.anywhere && len(errs) == 0 && !onLoopback(a.addr) {
		errs = append(errs, fmt.Errorf("--admin-addr: %s is no loopback address; other machines could read this process's memory there. "+
			"If that is meant, add --admin-anywhere", a.addr))
	}
	return errors.Join(errs...)
}

// listen returns where to listen, "" for nowhere, and the flag that says so.
func (a *adminSettings) listen() (flag, addr string) {
	if a.addr == "" && a.pprofAddr != "" {
		return "pprof-addr", a.pprofAddr
	}
	return "admin-addr", a.addr
}

// onLoopback reports whether addr is certain to be reached from this machine alone. A name may
// become another address, so of names only localhost is.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// newAdmin serves Go's profiler, and the log level where level is not nil. loopback says that
// only this machine is meant to ask.
func newAdmin(loopback bool, level *slog.LevelVar, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	if level != nil {
		mux.HandleFunc("GET /loglevel", func(w http.ResponseWriter, _ *http.Request) { writeLevel(w, level) })
		mux.HandleFunc("PUT /loglevel", func(w http.ResponseWriter, r *http.Request) { putLevel(w, r, level, log) })
	}
	var handler http.Handler = mux
	if loopback {
		handler = ownHost(mux)
	}
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, // a profile may take minutes
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// newAdmin makes the operators' port. At an address that was given for the profiler alone, and that
// others may reach, there is nothing else.
func (n *node) newAdmin() *http.Server {
	a := &n.settings.admin
	_, addr := a.listen()
	loopback, level := onLoopback(addr), a.level
	if a.pprofAddr != "" {
		n.log.Warn("--pprof-addr will go: use --admin-addr, which has the profiler and the log level")
		if !loopback {
			level = nil
		}
	}
	return newAdmin(loopback, level, n.log)
}

// ownHost refuses requests for a host by name, but localhost: a page in this machine's browser
// may have had its own name resolved to the loopback address.
func ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && host != "localhost" {
			http.Error(w, "ask by address or as localhost", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func writeLevel(w http.ResponseWriter, level *slog.LevelVar) {
	fmt.Fprintln(w, strings.ToLower(level.Level().String()))
}

// putLevel takes debug, info, warn or error as the body.
func putLevel(w http.ResponseWriter, r *http.Request, level *slog.LevelVar, log *slog.Logger) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		http.Error(w, "want one of debug, info, warn, error", http.StatusBadRequest)
		return
	}
	next, err := parseLevel(strings.TrimSpace(string(body)))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if before := level.Level(); before != next {
		level.Set(next)
		log.Warn("log level changed", "from", before, "to", next)
	}
	writeLevel(w, level)
}

func parseLevel(text string) (l slog.Level, err error) {
	if err := l.UnmarshalText([]byte(text)); err != nil {
		return 0, fmt.Errorf("%q is none of debug, info, warn, error", text)
	}
	return l, nil
}
