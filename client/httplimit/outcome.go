package httplimit

import (
	"bufio"
	"net"
	"net/http"
)

// outcome is a ResponseWriter that keeps the status of the response.
type outcome struct {
	http.ResponseWriter
	status int // 200 until the handler says otherwise
	begun  bool
}

func (o *outcome) WriteHeader(status int) {
	if !o.begun && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) { // others come before the response's
		o.status, o.begun = status, true
	}
	o.ResponseWriter.WriteHeader(status)
}

func (o *outcome) Write(b []byte) (int, error) {
	o.begun = true
	return o.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// Flush and Hijack are for handlers that assert http.Flusher and http.Hijacker.
func (o *outcome) Flush() {
	o.begun = true
	_ = http.NewResponseController(o.ResponseWriter).Flush() // http.Flusher has no error
}

func (o *outcome) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err == nil && !o.begun {
		o.status, o.begun = http.StatusSwitchingProtocols, true
	}
	return conn, rw, err
}
