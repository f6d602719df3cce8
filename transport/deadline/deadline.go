// Package deadline gives calls the deadlines that their transport does not carry: over HTTP the
// caller names its time in a header, and where a proxy has a timeout and sends none, the operator
// names it. The node answers before a deadline, see cluster.Node.Decide. It starts no goroutine.
package deadline

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// Header is the header of an HTTP request with the time that the caller waits, in the form of
// gRPC's grpc-timeout: up to eight digits and a unit, H, M, S, m (ms), u (µs) or n (ns).
const Header = "Grpc-Timeout"

// units of Header.
var units = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// Parse returns the time that a Header names.
func Parse(text string) (time.Duration, error) {
	if n := len(text); n >= 2 && n <= 9 {
		amount, err := strconv.ParseUint(text[:n-1], 10, 32)
		if unit := units[text[n-1]]; err == nil && unit > 0 {
			return time.Duration(min(amount, uint64(math.MaxInt64/unit))) * unit, nil
		}
	}
	return 0, fmt.Errorf("%q; want up to 8 digits and a unit: H, M, S, m for milliseconds, u or n, such as 50m", text)
}

// HTTP gives requests with a Header its deadline. Others go to h as they are. The Header must be
// the caller's own: a proxy's client could make the node answer without the key's owner.
func HTTP(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header[Header]
		if len(values) == 0 {
			h.ServeHTTP(w, r)
			return
		}
		left, err := Parse(values[0])
		if err != nil {
			httpanswer.Reject(w, httpanswer.ProblemOf(&limiter.Error{Code: limiter.Invalid, Field: "header " + Header, Message: err.Error()}))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), left)
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Assume returns ctx with a deadline after left, if it has none and left is not 0.
func Assume(ctx context.Context, left time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has || left == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, left)
}

// Unary gives calls of methods that have no deadline one after left.
func Unary(left time.Duration, methods func(full string) bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if !methods(info.FullMethod) {
			return next(ctx, req)
		}
		ctx, cancel := Assume(ctx, left)
		defer cancel()
		return next(ctx, req)
	}
}

// Assumed are the deadlines of callers that send none, by API. 0 is none.
type Assumed struct{ Envoy, ForwardAuth time.Duration }

// ParseAssumed reads items such as envoy=20ms and forward-auth=50ms.
func ParseAssumed(items []string) (a Assumed, err error) {
	for _, item := range items {
		api, text, _ := strings.Cut(item, "=")
		to := map[string]*time.Duration{"envoy": &a.Envoy, "forward-auth": &a.ForwardAuth}[api]
		d, err := time.ParseDuration(text)
		switch {
		case to == nil:
			return a, fmt.Errorf("%q: want envoy=TIME or forward-auth=TIME", item)
		case err != nil || d < time.Millisecond:
			return a, fmt.Errorf("%q: want a time of at least 1ms, such as %s=20ms", item, api)
		case *to != 0:
			return a, fmt.Errorf("%s is there twice", api)
		}
		*to = d
	}
	return a, nil
}
