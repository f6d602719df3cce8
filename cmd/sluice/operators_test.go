package main

import (
	"net/http"
	"net/http/cookiejar"
	"os"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/operators"
)

// operatorsCommands: the commands find the socket, or else the token, by the address alone; who is not the operator is told
// what to do.
func operatorsCommands(t *testing.T, n *running) {
	addr := n.grpc
	commands := [][]string{
		{"members"}, {"members", "forget", "nobody"}, {"members", "accept-loss", "--yes"}, {"members", "bootstrap", "--yes"},
		{"top", "--once"}, {"inspect", "--domain", "auth", "user=ann"}, {"console"},
	}
	// What the node itself rejects.
	reasons := map[string]string{"forget": "not in the voter set", "bootstrap": "quorum"}
	all := func(kind string) {
		for _, args := range commands {
			code, out, errs := cli(append(args, "--addr", addr)...)
			if want := reasons[args[min(1, len(args)-1)]]; want != "" {
				if code != exitDenied || !strings.Contains(errs, want) {
					t.Errorf("%s, %v: %d %s", kind, args, code, errs)
				}
			} else if code != 0 || out == "" {
				t.Errorf("%s, %v: %d %s", kind, args, code, errs)
			}
		}
	}
	all("socket")
	nobody := t.TempDir()
	for _, args := range commands[1:] {
		code, _, errs := cli(append(args, "--addr", addr, "--operators-dir", nobody)...)
		if code == 0 || !strings.Contains(errs, "--operators-dir") || !strings.Contains(errs, nobody) {
			t.Errorf("by another user, %v: %d %s", args, code, errs)
		}
	}
	if code, _, errs := cli("members", "--addr", addr, "--operators-dir", nobody); code != 0 {
		t.Errorf("members by another user: %d %s", code, errs)
	}
	way, _ := operators.Find("", addr)
	do(t, os.Remove(way.String()))
	all("token")
}

// consoleLogin: the address that `sluice console` prints gives a browser a session, once.
func consoleLogin(t *testing.T, n *running) {
	code, out, errs := cli("console", "--addr", n.grpc)
	base := "http://" + n.http
	login, ok := strings.CutPrefix(strings.TrimSpace(out), base+"/console#login=")
	if code != 0 || !ok {
		t.Fatalf("%d %q %s", code, out, errs)
	}
	jar, err := cookiejar.New(nil)
	do(t, err)
	browser := &http.Client{Jar: jar}
	defer browser.CloseIdleConnections()
	status := func(method, path, body string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		do(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		resp, err := browser.Do(req)
		do(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := status("GET", "/console/api/rules", ""); got != 401 {
		t.Errorf("before the login: %d", got)
	}
	if got := status("POST", "/console/login", `{"code":"`+login+`"}`); got != 204 {
		t.Errorf("login: %d", got)
	}
	if got := status("GET", "/console/api/rules", ""); got != 200 {
		t.Errorf("after the login: %d", got)
	}
	// The session is the console's.
	for _, path := range []string{"/admin/v1alpha1/top", "/admin/v1alpha1/members/forget", "/console/code"} {
		method := "POST"
		if path == "/admin/v1alpha1/top" {
			method = "GET"
		}
		if got := status(method, path, `{"name":"nobody"}`); got != 403 {
			t.Errorf("%s in a console's session: %d", path, got)
		}
	}
	if got := status("POST", "/console/logout", "{}"); got != 204 {
		t.Errorf("logout: %d", got)
	}
	if got := status("GET", "/console/api/rules", ""); got != 401 {
		t.Errorf("after the logout: %d", got)
	}
	if got := status("POST", "/console/login", `{"code":"`+login+`"}`); got != 401 {
		t.Errorf("the same login again: %d", got)
	}
}
