package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
)

// listeners are the TCP ports but gossip's.
type listeners struct{ grpc, http, peer, admin net.Listener }

func openListeners(s settings) (l listeners, err error) {
	for _, one := range []struct {
		flag     string
		addr     string
		listener *net.Listener
		own      bool
	}{
		{"grpc-port", s.listenAddr(s.grpcPort), &l.grpc, false}, {"http-port", s.listenAddr(s.httpPort), &l.http, false},
		{"peer-port", s.listenAddr(s.peerPort), &l.peer, true}, {"admin-addr", s.admin.addr, &l.admin, true},
	} {
		if one.addr == "" {
			continue
		}
		bounded, err := s.bounds.listenWithin(one.addr, one.own)
		if err != nil {
			l.close()
			return listeners{}, fmt.Errorf("--%s: %w", one.flag, err)
		}
		*one.listener = bounded
	}
	return l, nil
}

func (l listeners) close() {
	for _, one := range []net.Listener{l.grpc, l.http, l.peer, l.admin} {
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
