package deadline

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// TestParse: grpc-timeout as gRPC defines it.
func TestParse(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"20m": 20 * time.Millisecond, "1S": time.Second, "99999999n": 99999999, "2H": 2 * time.Hour, "3M": 3 * time.Minute,
		"5u": 5 * time.Microsecond, "0m": 0, "99999999H": math.MaxInt64 / time.Hour * time.Hour,
		"": -1, "m": -1, "20": -1, "20ms": -1, "-5m": -1, "1.5S": -1, "100000000n": -1, " 5m": -1, "+5m": -1,
	} {
		got, err := Parse(text)
		if want == -1 {
			if err == nil || !strings.Contains(err.Error(), "want up to 8 digits") {
				t.Errorf("%q: %v, %v", text, got, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

// TestHTTP: a request has the deadline of its header, none without one, and is rejected with a
// wrong one.
func TestHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := time.Duration(-1)
		h := HTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if deadline, has := r.Context().Deadline(); has {
				left = time.Until(deadline)
			}
		}))
		for _, c := range []struct {
			header string
			code   int
			left   time.Duration
		}{{"", 200, -1}, {"50m", 200, 50 * time.Millisecond}, {"soon", 400, -1}} {
			r, w := httptest.NewRequest(http.MethodPost, "/v1/check", nil), httptest.NewRecorder()
			if c.header != "" {
				r.Header.Set(Header, c.header)
			}
			left = -1
			h.ServeHTTP(w, r)
			if w.Code != c.code || left != c.left {
				t.Errorf("%q: %d, %v", c.header, w.Code, left)
			}
			if c.code == 400 && !strings.Contains(w.Body.String(), "header Grpc-Timeout") {
				t.Errorf("%q: %s", c.header, w.Body)
			}
		}
	})
}

// TestAssume: a deadline that the caller sends stays, and another is given only to the methods that
// are named.
func TestAssume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := Unary(20*time.Millisecond, func(full string) bool { return full == "/envoy" })
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, c := range []struct {
			ctx    context.Context
			method string
			want   time.Duration
		}{{t.Context(), "/envoy", 20 * time.Millisecond}, {short, "/envoy", time.Second}, {t.Context(), "/other", -1}} {
			got := time.Duration(-1)
			_, _ = call(c.ctx, nil, &grpc.UnaryServerInfo{FullMethod: c.method}, func(ctx context.Context, _ any) (any, error) {
				if deadline, has := ctx.Deadline(); has {
					got = time.Until(deadline)
				}
				return nil, nil
			})
			if got != c.want {
				t.Errorf("%s: %v, want %v", c.method, got, c.want)
			}
		}
	})
}

// TestParseAssumed: the items of --assume-deadline.
func TestParseAssumed(t *testing.T) {
	for items, want := range map[string]string{
		"": "", "envoy=20ms": "", "forward-auth=50ms envoy=1s": "",
		"envoy": "at least 1ms", "envoy=20": "at least 1ms", "envoy=0s": "at least 1ms", "envoy=-1s": "at least 1ms",
		"nginx=20ms": "want envoy=TIME or forward-auth=TIME", "envoy=1s envoy=2s": "envoy is there twice",
	} {
		a, err := ParseAssumed(strings.Fields(items))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %v, want %q", items, a, err, want)
		}
	}
	if a, _ := ParseAssumed([]string{"envoy=20ms", "forward-auth=50ms"}); a != (Assumed{20 * time.Millisecond, 50 * time.Millisecond}) {
		t.Errorf("%v", a)
	}
}
