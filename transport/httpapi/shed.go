package httpapi

import (
	"net/http"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// Shed returns h, but that requests which may be turned away are, with 503 and Retry-After, while admit says so. Their
// bodies are not read.
func Shed(h http.Handler, may func(*http.Request) bool, admit func() bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if may(r) && !admit() {
			httpanswer.Refuse(w, httpanswer.ProblemOf(limiter.ErrBusy))
			return
		}
		h.ServeHTTP(w, r)
	})
}
