package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// listeners are the TCP ports but gossip's.
type listeners struct{ grpc, http, peer, pprof net.Listener }

func openListeners(s settings) (l listeners, err error) {
	for _, one := range []struct {
		flag     string
		addr     string
		listener *net.Listener
	}{
		{"grpc-port", s.listenAddr(s.grpcPort), &l.grpc}, {"http-port", s.listenAddr(s.httpPort), &l.http},
		{"peer-port", s.listenAddr(s.peerPort), &l.peer}, {"pprof-addr", s.pprofAddr, &l.pprof},
	} {
		if one.addr == "" {
			continue
		}
		if *one.listener, err = net.Listen("tcp", one.addr); err != nil {
			l.close()
			return listeners{}, fmt.Errorf("--%s: %w", one.flag, err)
		}
	}
	return l, nil
}

func (l listeners) close() {
	for _, one := range []net.Listener{l.grpc, l.http, l.peer, l.pprof} {
		if one != nil {
			one.Close() // a server may have closed it already
		}
	}
}

func serveHTTP(s *http.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newProfiler serves what net/http/pprof does, on a server of its own.
func newProfiler() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second} // a profile may take minutes
}
