package httpbody

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/inflow"
)

func TestCost(t *testing.T) {
	s := Shape{Objects: []Object{{100, 2}, {10, 3}}, Text: 1}
	for _, c := range []struct {
		body string
		want int64
	}{
		{`{}`, 0},
		{`{"a":[{},{}]}`, 3 + 200},
		{`{"a":[{},{},{}]}`, 3 + 200}, // two are decoded
		{`{"a":[{"b":[{},{}]},{"b":[{},{},{},{}]}]}`, 3*3 + 200 + 20 + 30}, // three of each
		{`{"a":[{"b":[{"c":{"d":{}}}]}]}`, 3*4 + 100 + 10},
		{`{"{":[{}]}`, 3 + 100},
		{`{"\"{":[{}]}`, 5 + 100},
		{`}}}{"a":[{}`, 3 + 100},
		{`"\`, 4},
	} {
		if got := s.cost([]byte(c.body)); got != c.want {
			t.Errorf("%s: %d, want %d", c.body, got, c.want)
		}
	}
}

// A body that takes more than any may is not decoded, and one for which there is no room waits for
// it.
func TestRead(t *testing.T) {
	m := inflow.NewMemory(100 << 20) // 20 MiB for one message
	s := Shape{Objects: []Object{{Bytes: 1 << 10}}}
	read := func(ctx context.Context, objects int, f func([]byte) error) error {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"a":[`+strings.Repeat("{},", objects)+`{}]}`))
		return Read(httptest.NewRecorder(), r.WithContext(ctx), Most, m, s, f)
	}
	none := func([]byte) error { t.Error("it was decoded"); return nil }
	if status, text, ok := Status(read(t.Context(), 21<<10, none)); !ok || status != http.StatusRequestEntityTooLarge {
		t.Errorf("too many objects: %d %s", status, text)
	}
	first, end := context.WithCancel(t.Context())
	if err := read(first, 15<<10, func([]byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := read(gone, 15<<10, none); !errors.Is(err, context.Canceled) {
		t.Errorf("no room: %v", err)
	}
	if err := read(t.Context(), 100, func([]byte) error { return nil }); err != nil { // smaller ones have their own
		t.Errorf("a smaller one: %v", err)
	}
	defer end()
	second := make(chan error)
	go func() { second <- read(t.Context(), 15<<10, func([]byte) error { return nil }) }()
	end()
	if err := <-second; err != nil {
		t.Errorf("when the first has ended: %v", err)
	}
	if status, _, ok := Status(inflow.ErrNoMemory); !ok || status != http.StatusServiceUnavailable {
		t.Errorf("no memory: %d", status)
	}
}
