package httplimit

import (
	"bufio"
	"cmp"
	"net"
	"net/http"
)

// outcome is a ResponseWriter that keeps the status of the response.
type outcome struct {
	http.ResponseWriter
	status int // 0 until the response has begun
}

func (o *outcome) begin(status int) { o.status = cmp.Or(o.status, status) }

func (o *outcome) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols { // others come before the response's
		o.begin(status)
	}
	o.ResponseWriter.WriteHeader(status)
}

func (o *outcome) Write(b []byte) (int, error) {
	o.begin(http.StatusOK)
	return o.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// Flush and Hijack are for handlers that assert http.Flusher and http.Hijacker.
func (o *outcome) Flush() {
	o.begin(http.StatusOK)
	_ = http.NewResponseController(o.ResponseWriter).Flush() // http.Flusher has no error
}

func (o *outcome) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err == nil {
		o.begin(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
