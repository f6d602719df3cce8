package console

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
)

// cookies returns the header with the cookies that res sets.
func cookies(t *testing.T, res *httptest.ResponseRecorder) string {
	t.Helper()
	var pairs, paths []string
	for _, c := range res.Result().Cookies() {
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
			t.Errorf("a script or another site can use %v", c)
		}
		paths = append(paths, c.Path)
		pairs = []string{c.Name + "=" + c.Value}
	}
	if got := strings.Join(paths, " "); got != "/console/api /console/logout" {
		t.Fatalf("%d %s: cookies for %q", res.Code, res.Body, got)
	}
	return "Cookie: " + strings.Join(pairs, "; ")
}

// codeOf asks for a login address and returns its code.
func codeOf(t *testing.T, w *testCluster) string {
	t.Helper()
	res := w.ask("POST", "/console/code", "{}")
	var a loginCode
	if err := json.Unmarshal(res.Body.Bytes(), &a); err != nil || res.Code != 200 {
		t.Fatalf("%d %s", res.Code, res.Body)
	}
	code, ok := strings.CutPrefix(a.URL, "http://127.0.0.1:7461/console#login=")
	if !ok || len(code) < 26 {
		t.Fatalf("the address is %q", a.URL)
	}
	return code
}

// TestLoginOptions: everybody may know how to sign in.
func TestLoginOptions(t *testing.T) {
	const runbook = limiter.DocsURL + "operate/troubleshooting.md#sluicedown"
	for guard, want := range map[*access.Guard]loginOptions{
		nil: {URL: "http://127.0.0.1:7461", Command: "sluice console", Runbook: runbook},
		access.NewGuard(&access.Policy{}, slog.New(slog.DiscardHandler), time.Now): {AccessControl: true, URL: "http://127.0.0.1:7461", Command: "sluice console", Runbook: runbook},
	} {
		res := newTestCluster(t, guard).askAs(t.Context(), "GET", "/console/login-options", "")
		var got loginOptions
		if err := json.Unmarshal(res.Body.Bytes(), &got); err != nil || res.Code != 200 || got != want {
			t.Errorf("%d %s: want %+v", res.Code, res.Body, want)
		}
	}
}

// TestLogin: without a policy nobody but an operator asks anything, and a browser in which an operator has logged in.
func TestLogin(t *testing.T) {
	w := newTestCluster(t, nil)
	asks := []struct{ method, path, body string }{
		{"GET", "/console/api/rules", ""}, {"GET", "/console/api/watch", ""}, {"POST", "/console/api/inspect", ann}, {"POST", "/console/api/inspect/reset", ann},
	}
	for _, a := range asks {
		for _, header := range []string{"X-Nothing: x", "Cookie: " + "sluice=x", "X-Forwarded-For: 127.0.0.1"} {
			if res := w.askAs(t.Context(), a.method, a.path, a.body, header); res.Code != 401 || !strings.Contains(res.Body.String(), "sluice console") {
				t.Errorf("%s without a session, with %q: %d %s", a.path, header, res.Code, res.Body)
			}
		}
	}
	if res := w.askAs(t.Context(), "POST", "/console/code", "{}"); res.Code != 403 {
		t.Errorf("a code for nobody: %d %s", res.Code, res.Body)
	}

	login := func(code string) *httptest.ResponseRecorder {
		return w.askAs(t.Context(), "POST", "/console/login", `{"code":"`+code+`"}`)
	}
	code := codeOf(t, w)
	if res := w.askAs(t.Context(), "POST", "/console/login", `{"code":"`+code+`"}`, "Content-Type: text/plain"); res.Code != 415 {
		t.Errorf("a form logs in: %d", res.Code)
	}
	cookie := cookies(t, login(code))
	for _, bad := range []string{code, "", "x"} {
		if res := login(bad); res.Code != 401 || len(res.Result().Cookies()) > 0 {
			t.Errorf("login with %q, after it was used: %d", bad, res.Code)
		}
	}
	for _, a := range asks {
		if a.path == "/console/api/watch" {
			continue // goes on
		}
		if res := w.askAs(t.Context(), a.method, a.path, a.body, cookie); res.Code != 200 {
			t.Errorf("%s in a session: %d %s", a.path, res.Code, res.Body)
		}
	}
	other := newTestCluster(t, nil)
	if res := other.askAs(t.Context(), "GET", "/console/api/rules", "", cookie); res.Code != 401 {
		t.Errorf("another node takes the cookie: %d", res.Code)
	}
	if res := w.askAs(t.Context(), "POST", "/console/code", "{}", cookie); res.Code != 403 {
		t.Errorf("a session makes codes: %d", res.Code)
	}
	if res := w.askAs(t.Context(), "POST", "/console/logout", "{}", cookie); res.Code != 204 || res.Result().Cookies()[0].MaxAge >= 0 {
		t.Errorf("logout: %d", res.Code)
	}
	if res := w.askAs(t.Context(), "GET", "/console/api/rules", "", cookie); res.Code != 401 {
		t.Errorf("after the logout: %d", res.Code)
	}
}

// TestLoginOfCallers: a session may do what its caller may, as long as the file has it.
func TestLoginOfCallers(t *testing.T) {
	policy, token := onePolicy(t, "read")
	guard := access.NewGuard(policy, slog.New(slog.DiscardHandler), time.Now)
	w := newTestCluster(t, guard)
	for header, status := range map[string]int{"X-Nothing: x": 401, "Authorization: Bearer sluice_wrong": 401} {
		if res := w.askAs(t.Context(), "POST", "/console/login", "{}", header); res.Code != status || len(res.Result().Cookies()) > 0 {
			t.Errorf("login with %q: %d", header, res.Code)
		}
	}
	cookie := cookies(t, w.askAs(t.Context(), "POST", "/console/login", "{}", "Authorization: Bearer "+token))
	if res := w.askAs(t.Context(), "GET", "/console/api/rules", "", cookie); res.Code != 200 {
		t.Errorf("rules: %d %s", res.Code, res.Body)
	}
	if res := w.askAs(t.Context(), "POST", "/console/api/inspect/reset", ann, cookie); res.Code != 403 {
		t.Errorf("reset by who may only read: %d %s", res.Code, res.Body)
	}
	operator := cookies(t, w.askAs(t.Context(), "POST", "/console/login", `{"code":"`+codeOf(t, w)+`"}`))
	if res := w.askAs(t.Context(), "POST", "/console/api/inspect/reset", ann, operator); res.Code != 200 {
		t.Errorf("reset by an operator: %d %s", res.Code, res.Body)
	}
	another, _ := onePolicy(t, "read")
	guard.SetPolicy(another)
	if res := w.askAs(t.Context(), "GET", "/console/api/rules", "", cookie); res.Code != 401 {
		t.Errorf("after the token was taken away: %d %s", res.Code, res.Body)
	}
}

// TestLoginsEnd: codes and sessions end by themselves, and are so many.
func TestLoginsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins()
		early, late := l.codes.put(&session{operator: true}), l.codes.put(&session{operator: true})
		time.Sleep(codeLife - time.Nanosecond)
		if l.codes.take(early, true) == nil {
			t.Error("a code ends early")
		}
		time.Sleep(time.Nanosecond)
		if l.codes.take(late, true) != nil {
			t.Error("a code lasts longer")
		}
		request := func(value string) *http.Request {
			r := httptest.NewRequest("GET", "/", nil)
			r.AddCookie(&http.Cookie{Name: l.cookie, Value: value})
			return r
		}
		first := l.sessions.put(&session{})
		time.Sleep(sessionLife - time.Nanosecond)
		if l.of(request(first), false) == nil {
			t.Error("a session ends early")
		}
		time.Sleep(time.Nanosecond)
		if l.of(request(first), false) != nil || len(l.sessions.mu.sessions) != 0 {
			t.Error("a session lasts longer")
		}
		first = l.sessions.put(&session{})
		for range maxSessions {
			time.Sleep(time.Nanosecond)
			l.sessions.put(&session{})
		}
		if l.of(request(first), false) != nil || len(l.sessions.mu.sessions) != maxSessions {
			t.Errorf("%d sessions", len(l.sessions.mu.sessions))
		}
	})
}
