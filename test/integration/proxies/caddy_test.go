package proxies

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy/forwardauth"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
)

// runCaddy runs examples/caddy/Caddyfile at host, with a change, in this process until the test ends. There
// is one Caddy at a time.
func runCaddy(t *testing.T, host, old, new string) {
	t.Helper()
	text := example(t, "caddy/Caddyfile", host)
	if !strings.Contains(text, old) {
		t.Fatalf("the example has no %q", old)
	}
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(strings.ReplaceAll(text, old, new)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		if !strings.Contains(w.Message, "not formatted") { // addresses differ in length
			t.Errorf("Caddyfile:%d: %s", w.Line, w.Message)
		}
	}
	var c caddy.Config
	if err := json.Unmarshal(adapted, &c); err != nil {
		t.Fatal(err)
	}
	// Nothing is kept in the home of who runs the tests.
	dir, keep := t.TempDir(), false
	t.Setenv("XDG_DATA_HOME", dir)
	c.StorageRaw = json.RawMessage(`{"module": "file_system", "root": ` + strconv.Quote(dir) + `}`)
	c.Admin.Config = &caddy.ConfigSettings{Persist: &keep}
	c.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{Level: "PANIC"}}}}
	if err := caddy.Run(&c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestCaddy(t *testing.T) {
	host := newHost(t)
	node := startSluice(t, host, "caddy/rules")
	runCaddy(t, host, "", "")
	conversation(t, host, "Too many attempts", true)
	if a := (client{t, host, "127.0.0.11"}).ask("POST", "/login", "Content-Length: 0"); a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the rule's headers: %+v", a)
	}
	node.stop()
	failsClosed(t, host, "no node answers")
}

func TestCaddyWithoutDomain(t *testing.T) {
	host := newHost(t)
	startSluice(t, host, "caddy/rules")
	runCaddy(t, host, "authorize/web", "authorize/none")
	failsClosed(t, host, "a domain that is not known")
}

// TestCaddyOpen: docs/use/forward-auth.md says how requests pass when no node answers, and only then.
func TestCaddyOpen(t *testing.T) {
	host := newHost(t)
	node := startSluice(t, host, "caddy/rules")
	runCaddy(t, host, "\n}\n\n# Stands", "\n\thandle_errors 502 503 {\n\t\treverse_proxy "+host+":10001\n\t}\n}\n\n# Stands")
	conversation(t, host, "Too many attempts", true)
	node.stop()
	for range 3 {
		if a := (client{t, host, "127.0.0.11"}).ask("POST", "/login", "Content-Length: 0"); a.status != 200 || a.body != "hello" {
			t.Errorf("without a node: %+v", a)
		}
	}
}
