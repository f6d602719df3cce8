package forwardauth

import (
	"net/url"
	"strings"
	"testing"
)

func TestPathOf(t *testing.T) {
	for target, want := range map[string]string{
		"/":                          "/",
		"/login":                     "/login",
		"/login/":                    "/login/",
		"/login?next=/admin/../x":    "/login",
		"/login#x":                   "/login",
		"//login":                    "/login",
		"/./login":                   "/login",
		"/a/../login":                "/login",
		"/../../login":               "/login",
		"/login/.":                   "/login/",
		"/login/x/..":                "/login/",
		"/..":                        "/",
		"/%6Cogin":                   "/login",
		"/%2e%2e/login":              "/login",
		"/a%2F..%2flogin":            "/login",
		"/login%3Fx":                 "/login?x",
		"/login%00":                  "/login\x00",
		"/%256Cogin":                 "/%6Cogin",
		"/a+b":                       "/a+b",
		"/LOGIN":                     "/LOGIN",
		"/.well-known/x":             "/.well-known/x",
		"/a...":                      "/a...",
		"*":                          "*",
		"https://shop.example/login": "/login",
		"https://shop.example":       "/",
		"https://shop.example?x=/a":  "/",
		"http://[::1]:80//login/":    "/login/",
	} {
		got, err := pathOf(target)
		if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", target, got, err, want)
		}
	}
	for _, target := range []string{"", "?x", "login", "./login", "/%", "/%zz", "/%4", "://x/login", "a/b://x", "**", "/a%ffb%"} {
		if got, err := pathOf(target); err == nil {
			t.Errorf("%q: %q, want an error", target, got)
		}
	}
}

// FuzzPathOf: a path is told the same however it is escaped, and has no detours.
func FuzzPathOf(f *testing.F) {
	for _, s := range []string{"/", "/a//b/../c/.", "/%2e%2E/x?y", "http://h/p", "/%", "*", "/a%2f%2e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		got, err := pathOf(target)
		if err != nil || got == "*" {
			return
		}
		if !strings.HasPrefix(got, "/") || strings.Contains(got, "//") {
			t.Errorf("%q: %q", target, got)
		}
		for s := range strings.SplitSeq(got, "/") {
			if s == "." || s == ".." {
				t.Errorf("%q: %q has a detour", target, got)
			}
		}
		escaped := (&url.URL{Path: got}).EscapedPath()
		again, err := pathOf(escaped)
		if err != nil || again != got {
			t.Errorf("%q is %q, and that again is %q, %v", target, got, again, err)
		}
		if detour, err := pathOf("/x/.." + escaped + "?" + target); err != nil || detour != got {
			t.Errorf("a detour to %q is %q, %v", got, detour, err)
		}
	})
}

func TestHostOf(t *testing.T) {
	for host, want := range map[string]string{
		"":                  "",
		"shop.example":      "shop.example",
		"Shop.EXAMPLE:8443": "shop.example",
		"shop.example.":     "shop.example",
		"shop.example.:80":  "shop.example",
		"192.0.2.1:80":      "192.0.2.1",
		"[2001:DB8::1]:80":  "[2001:db8::1]",
		"[2001:db8::1]":     "[2001:db8::1]",
		"2001:db8::1":       "2001:db8::1",
		":80":               "",
	} {
		if got := hostOf(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}
