package main

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

// The level of a running logger is read and changed, and what is no level changes nothing.
func TestLogLevel(t *testing.T) {
	var out bytes.Buffer
	log, level, err := newLogger(&out, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	h := operatorsTools(level, log)
	for _, c := range []struct {
		method, body string
		status       int
		answer       string
		now          slog.Level
	}{
		{"GET", "", 200, "info\n", slog.LevelInfo},
		{"PUT", "debug\n", 200, "debug\n", slog.LevelDebug},
		{"GET", "", 200, "debug\n", slog.LevelDebug},
		{"PUT", "loud", 400, `"loud" is none of`, slog.LevelDebug},
		{"PUT", strings.Repeat("x", 100), 400, "want one of", slog.LevelDebug},
		{"POST", "error", 405, "", slog.LevelDebug},
		{"PUT", "ERROR", 200, "error\n", slog.LevelError},
	} {
		r := httptest.NewRequest(c.method, "/loglevel", strings.NewReader(c.body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.answer) || level.Level() != c.now {
			t.Errorf("%s %q: %d %q, level %v", c.method, c.body, w.Code, w.Body, level.Level())
		}
	}
	if text := out.String(); strings.Count(text, "log level changed") != 1 || !strings.Contains(text, "from=INFO to=DEBUG") {
		t.Errorf("logged:\n%s", text)
	}
	log.Warn("unheard")
	if strings.Contains(out.String(), "unheard") {
		t.Error("a warning was logged at level error")
	}
}

func TestAdminAddress(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // in the error, "" for none
	}{
		{[]string{"--admin-addr", "127.0.0.1:7464"}, ""},
		{[]string{"--admin-addr", "127.9.9.9:7464"}, ""},
		{[]string{"--admin-addr", "[::1]:7464"}, ""},
		{[]string{"--admin-addr", "localhost:7464"}, ""},
		{[]string{"--admin-addr", "0.0.0.0:7464", "--admin-anywhere"}, ""},
		{[]string{"--admin-addr", ":7464"}, "--admin-anywhere"},
		{[]string{"--admin-addr", "0.0.0.0:7464"}, "--admin-anywhere"},
		{[]string{"--admin-addr", "node1:7464"}, "--admin-anywhere"},
		{[]string{"--admin-addr", "127.0.0.1"}, "--admin-addr"},
	} {
		s, _ := parsed(t, c.args...)
		err := s.admin.validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
