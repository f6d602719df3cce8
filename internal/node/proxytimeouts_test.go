package node

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// proxyMargin is how much longer than --check-timeout a proxy must wait at least: the way there and back, and a loaded machine.
const proxyMargin = 300 * time.Millisecond

// proxyTimeouts is where examples and docs say how long a proxy waits for an answer.
var proxyTimeouts = []struct{ file, pattern string }{
	{"examples/envoy/envoy.yaml", `domain: edge(?:.*\n)+?\s+timeout: (\S+)\n(?:.*\n)+?\s+rate_limit_service:`},
	{"examples/envoy-ext-authz/envoy.yaml", `server_uri:\n(?:.*\n)+?\s+timeout: (\S+)\n`},
	{"examples/nginx/nginx.conf", `proxy_read_timeout +(\S+);`},
	{"examples/caddy/Caddyfile", `response_header_timeout (\S+)`},
	{"docs/use/envoy.md", `\n    timeout: (\S+) `},
	{"docs/use/envoy.md", "its `timeout` must be longer than `--check-timeout`: (2 s)\\."},
	{"docs/use/forward-auth.md", `the examples have (\S+ s);`},
	{"docs/use/forward-auth.md", `Traefik waits (\S+ s)\.`},
	{"docs/use/client.md", `plus a round trip and 300 ms; (\S+ s) until a node has told`},
}

// toldCheckTimeout finds what a text says that --check-timeout is.
var toldCheckTimeout = regexp.MustCompile("check-timeout`?(?:, | \\()([0-9.]+ ?m?s)\\b")

// TestProxyTimeouts: proxies wait longer than a node looks for a key's owner. Otherwise on_failure decides during a takeover.
func TestProxyTimeouts(t *testing.T) {
	checkTimeout := Defaults().CheckTimeout
	for _, p := range proxyTimeouts {
		found := regexp.MustCompile(p.pattern).FindAllStringSubmatch(readRepository(t, p.file), -1)
		if len(found) != 1 {
			t.Errorf("%s: %d places match %s, want 1", p.file, len(found), p.pattern)
		}
		for _, f := range found {
			if d := duration(t, f[1]); d < checkTimeout+proxyMargin {
				t.Errorf("%s: the proxy waits %v; want %v more than --check-timeout, which is %v", p.file, d, proxyMargin, checkTimeout)
			}
		}
	}
	told := 0
	for _, pattern := range []string{"*.md", "docs/*/*.md", "examples/*/*", "deploy/*/*.md"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		do(t, err)
		for _, file := range files {
			if info, err := os.Stat(file); err != nil || info.IsDir() {
				continue
			}
			file = strings.TrimPrefix(file, "../../")
			for _, f := range toldCheckTimeout.FindAllStringSubmatch(readRepository(t, file), -1) {
				told++
				if d := duration(t, f[1]); d != checkTimeout {
					t.Errorf("%s: %q, but --check-timeout is %v", file, f[0], checkTimeout)
				}
			}
		}
	}
	if want := 5; told < want { // four examples and docs/use/forward-auth.md
		t.Errorf("%d places tell --check-timeout, want %d or more", told, want)
	}
}

// readRepository returns the text of a file of the repository.
func readRepository(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	do(t, err)
	return string(text)
}

// duration reads a time as people and configurations write it.
func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(strings.ReplaceAll(text, " ", ""))
	do(t, err)
	return d
}
