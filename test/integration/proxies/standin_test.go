package proxies

import (
	"io"
	"net"
	"net/http"
	"testing"
)

// standIn is a proxy as its documentation has it, for those that tests cannot run: it asks for each request,
// and passes it on if the answer is a success.
type standIn struct {
	t *testing.T
	// asks returns what is asked about r. Its headers are all that goes along.
	asks func(r *http.Request) *http.Request
	// tells reports whether a header of an answer that lets pass goes to the client.
	tells func(header string) bool
}

// listen serves at host, at the port of the examples, until the test ends.
func (s standIn) listen(host string) {
	s.t.Helper()
	l, err := net.Listen("tcp", host+":10000")
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(l)
	}()
	s.t.Cleanup(func() {
		server.Close()
		<-done
	})
}

func (s standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	res, err := http.DefaultTransport.RoundTrip(s.asks(r)) // follows no redirects
	if err != nil {
		http.Error(w, "no answer", http.StatusServiceUnavailable)
		return
	}
	defer res.Body.Close()
	passes := res.StatusCode >= 200 && res.StatusCode < 300
	for name, values := range res.Header {
		if !passes || s.tells(name) {
			w.Header()[name] = values
		}
	}
	if passes {
		w.Header().Del("Content-Length")
		io.WriteString(w, "hello\n")
		return
	}
	w.WriteHeader(res.StatusCode)
	io.Copy(w, res.Body)
}

// peerOf returns the address that r came from.
func peerOf(t *testing.T, r *http.Request) string {
	t.Helper()
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		t.Error(err)
	}
	return host
}
