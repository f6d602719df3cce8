package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
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
	h := newAdmin(true, level, log).Handler
	for _, c := range []struct {
		method, host, body string
		status             int
		answer             string
		now                slog.Level
	}{
		{"GET", "127.0.0.1:7464", "", 200, "info\n", slog.LevelInfo},
		{"PUT", "127.0.0.1:7464", "debug\n", 200, "debug\n", slog.LevelDebug},
		{"GET", "localhost", "", 200, "debug\n", slog.LevelDebug},
		{"PUT", "[::1]:7464", "loud", 400, `"loud" is none of`, slog.LevelDebug},
		{"PUT", "[::1]:7464", strings.Repeat("x", 100), 400, "want one of", slog.LevelDebug},
		{"PUT", "rebound.example:7464", "error", 421, "localhost", slog.LevelDebug},
		{"POST", "127.0.0.1", "error", 405, "", slog.LevelDebug},
		{"PUT", "127.0.0.1", "ERROR", 200, "error\n", slog.LevelError},
	} {
		r := httptest.NewRequest(c.method, "/loglevel", strings.NewReader(c.body))
		r.Host = c.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.answer) || level.Level() != c.now {
			t.Errorf("%s %q to %s: %d %q, level %v", c.method, c.body, c.host, w.Code, w.Body, level.Level())
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
		{[]string{"--pprof-addr", "0.0.0.0:6060"}, ""}, // as before
		{[]string{"--admin-addr", "0.0.0.0:7464", "--admin-anywhere"}, ""},
		{[]string{"--admin-addr", ":7464"}, "--admin-anywhere"},
		{[]string{"--admin-addr", "0.0.0.0:7464"}, "--admin-anywhere"},
		{[]string{"--admin-addr", "node1:7464"}, "--admin-anywhere"},
		{[]string{"--admin-addr", "127.0.0.1"}, "--admin-addr"},
		{[]string{"--admin-addr", "127.0.0.1:1", "--pprof-addr", "127.0.0.1:2"}, "--pprof-addr"},
	} {
		s, _ := parsed(t, c.args...)
		err := s.admin.validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

// A node serves its operators on a port of their own, by the old name of the flag too.
func TestAdminPort(t *testing.T) {
	for name, change := range map[string]func(*settings){
		"admin":          func(s *settings) { s.admin.addr = "127.0.0.1:0" },
		"by the old one": func(s *settings) { s.admin.pprofAddr = "127.0.0.1:0" },
	} {
		t.Run(name, func(t *testing.T) {
			s := testSettings(t)
			s.admin.level = new(slog.LevelVar)
			change(&s)
			n := startNode(t, s)
			for _, path := range []string{"/loglevel", "/debug/pprof/", "/debug/pprof/goroutine?debug=1"} {
				resp, err := http.Get("http://" + n.listen.admin.Addr().String() + path)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK || len(body) == 0 {
					t.Errorf("%s: %d %v", path, resp.StatusCode, err)
				}
			}
		})
	}
}
