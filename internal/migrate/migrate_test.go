package migrate

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files and the tables of the guides anew")

var products = []*Product{Gubernator, Ratelimit}

// golden compares text with a file, or writes it with -update.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		do(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	do(t, err)
	if text != string(want) {
		t.Errorf("%s differs; see the difference with: go test ./internal/migrate -update\n%s", file, text)
	}
}

// full are the settings in the product's file of testdata, which has every setting.
func full(t *testing.T, p *Product) []Value {
	t.Helper()
	file := "testdata/" + p.Name + ".env"
	text, err := os.ReadFile(file)
	do(t, err)
	values, err := Read(file, string(text))
	do(t, err)
	return values
}

func TestGolden(t *testing.T) {
	for _, p := range products {
		t.Run(p.Name, func(t *testing.T) {
			rules := ""
			if p == Ratelimit {
				rules = "testdata/rules"
			}
			r, err := p.Convert(full(t, p), nil, rules)
			do(t, err)
			golden(t, "testdata/"+p.Name+".golden", r.String())
			if strings.Contains(r.String(), "not-shown") {
				t.Error("a password is shown")
			}
			for name, text := range r.Files {
				golden(t, "testdata/"+name+".golden", text)
			}
		})
	}
}

// TestEverySetting: the table has each setting of the full file once, and no other one; each is in the report.
func TestEverySetting(t *testing.T) {
	for _, p := range products {
		var table, file, notes []string
		for _, s := range p.settings {
			table = append(table, strings.Fields(s.names)...)
			if s.text == "" || (s.fate == converted) != (s.to != nil) {
				t.Errorf("%s: no text, or no conversion, or one too many", s.names)
			}
		}
		values := full(t, p)
		for _, v := range values[:len(values)-1] { // the last is unknown
			file = append(file, v.Name)
		}
		slices.Sort(table)
		slices.Sort(file)
		if !slices.Equal(table, file) {
			t.Errorf("%s: the table has\n%q, the file\n%q", p.Name, table, file)
		}
		r, err := p.Convert(values, nil, "")
		do(t, err)
		for _, n := range r.Notes {
			notes = append(notes, n.Setting)
		}
		for _, name := range table {
			// Two addresses of one flag: the second one is not mentioned if it is the same.
			if !slices.Contains(notes, name) && !slices.Contains(strings.Fields("HOST GUBER_K8S_POD_IP GUBER_ETCD_ADVERTISE_ADDRESS"), name) {
				t.Errorf("%s: nothing is said about %s", p.Name, name)
			}
		}
	}
}

func TestConversions(t *testing.T) {
	for _, c := range []struct {
		p          *Product
		text, join string
		flags      string // some of them
		todo       string
	}{
		{Gubernator, "", "", "bind=127.0.0.1 grpc-port=1051 http-port=1050 bootstrap-expect=1", "a single node"},
		{Gubernator, "GUBER_GRPC_ADDRESS=:81\n", "", "bind=0.0.0.0 grpc-port=81 http-port=1050 secret-file=secret", "head -c 32"},
		{Gubernator, "GUBER_HTTP_ADDRESS=[::]:80\n", "", "bind=:: http-port=80 grpc-port=1051", ""},
		{Gubernator, "GUBER_GRPC_ADDRESS=10.0.0.1:1\nGUBER_HTTP_ADDRESS=10.0.0.2:2\n", "", "bind=10.0.0.1 http-port=2", "gives --bind 10.0.0.2; GUBER_GRPC_ADDRESS gives 10.0.0.1, which is used"},
		{Gubernator, "GUBER_ADVERTISE_ADDRESS=pod-1:1051\n", "", "", "--advertise wants an IP address: give that of pod-1"},
		{Gubernator, "GUBER_DNS_FQDN=limits.example.com.\n", "", "join=limits.example.com bootstrap-expect=3", "more than half"},
		{Gubernator, "GUBER_MEMBERLIST_KNOWN_NODES=a:7946, b:7946\nGUBER_MEMBERLIST_BIND_ADDRESS=0.0.0.0:7946\n", "", "join=a,b bootstrap-expect=2 gossip-port=7946", "more than half of the nodes that start\nopen the peer port, 7462 (TCP), and the gossip port, 7946"},
		{Gubernator, "GUBER_MEMBERLIST_KNOWN_NODES=a:7946\n", "n1,n2,n3", "join=n1,n2,n3 bootstrap-expect=3", ""},
		{Gubernator, "GUBER_DEBUG=true\nGUBER_LOG_LEVEL=debug\n", "", "log-level=debug", ""},
		{Gubernator, "GUBER_TLS_CERT=c\nGUBER_TLS_KEY=k\n", "", "tls-cert=c tls-key=k", ""},
		{Gubernator, "GUBER_TLS_CERT=c\nGUBER_TLS_KEY=k\nGUBER_TLS_CA=a\nGUBER_TLS_CLIENT_AUTH=verify-cert\n", "",
			"tls-cert=c peer-tls-cert=c peer-tls-key=k peer-tls-ca=a tls-client-ca=a tls-client-auth=request", "--peer-tls-name"},
		{Gubernator, "GUBER_TLS_AUTO=true\n", "", "", "`sluice cert`"},
		{Gubernator, "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318\nOTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf\nOTEL_TRACES_SAMPLER=always_on\n", "",
			"otlp-endpoint=http://c:4318 trace-sample=1", "4317"},
		{Ratelimit, "", "", "bind=0.0.0.0 grpc-port=8081 http-port=8080 log-level=warn rules=/srv/runtime_data/current/config secret-file=secret", "Prometheus metrics"},
		{Ratelimit, "RUNTIME_ROOT=/data/\nRUNTIME_SUBDIRECTORY=a/b\nRUNTIME_APPDIRECTORY=c\n", "", "rules=/data/a/b/c", ""},
		{Ratelimit, "GRPC_SERVER_TLS_CERT=c\nGRPC_SERVER_TLS_KEY=k\n", "", "tls-cert=", ""},
		{Ratelimit, "GRPC_SERVER_USE_TLS=true\nGRPC_SERVER_TLS_CERT=c\nGRPC_SERVER_TLS_KEY=k\nGRPC_CLIENT_TLS_CACERT=a\n", "",
			"tls-cert=c tls-key=k tls-client-ca=a tls-client-auth=require", "need https"},
		{Ratelimit, "CONFIG_TYPE=GRPC_XDS_SOTW\n", "", "", "write what the xDS server sends"},
		{Ratelimit, "SHADOW_MODE=false\nQUOTA_MODE=true\n", "", "", "each rule needs shadow_mode: true"},
		{Ratelimit, "TRACING_ENABLED=true\nOTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317\n", "", "otlp-endpoint=http://c:4317 trace-sample=1", ""},
		{Ratelimit, "TRACING_SAMPLING_RATE=0.5\n", "", "trace-sample=", ""},
		{Ratelimit, "USE_STATSD=true\n", "n1,n2,n3", "join=n1,n2,n3 bootstrap-expect=3", "send them on\nopen the peer port, 7462 (TCP), and the gossip port, 7463"},
	} {
		values, err := Read("x.env", c.text)
		do(t, err)
		r, err := c.p.Convert(values, strings.FieldsFunc(c.join, func(r rune) bool { return r == ',' }), "")
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		flags, todo := map[string]string{}, ""
		for _, n := range r.Notes {
			if n.Outcome == Todo {
				todo += n.Text + "\n"
			} else if n.Outcome == Flag {
				flags[n.Flag] = n.Value
			}
		}
		for want := range strings.FieldsSeq(c.flags) {
			if name, value, _ := strings.Cut(want, "="); flags[name] != value {
				t.Errorf("%q: --%s=%s, want %s", c.text, name, flags[name], value)
			}
		}
		if !strings.Contains(todo, c.todo) {
			t.Errorf("%q: nothing to do about %s in:\n%s", c.text, c.todo, todo)
		}
	}
}

func TestWrongSettings(t *testing.T) {
	for _, c := range []struct {
		p          *Product
		text, want string
	}{
		{Gubernator, "\nGUBER_GRPC_ADDRESS=1051\n", `x.env:2: GUBER_GRPC_ADDRESS: "1051" is not host:port`},
		{Gubernator, "GUBER_CACHE_SIZE=many", `x.env:1: GUBER_CACHE_SIZE: "many" is no whole number`},
		{Gubernator, "GUBER_LOG_LEVEL=loud", `x.env:1: GUBER_LOG_LEVEL: "loud" is none of trace, debug, `},
		{Gubernator, "GUBER_DEBUG=perhaps", `x.env:1: GUBER_DEBUG: "perhaps" is neither true nor false`},
		{Gubernator, "GUBER_TLS_CLIENT_AUTH=all", `x.env:1: GUBER_TLS_CLIENT_AUTH: "all" is none of request-cert, `},
		{Gubernator, "GUBER_PEER_DISCOVERY_TYPE=zookeeper", `x.env:1: GUBER_PEER_DISCOVERY_TYPE: "zookeeper" is none of member-list, `},
		{Gubernator, "    environment:", "x.env:1: want NAME=VALUE, as env prints it"},
		{Ratelimit, "SHADOW_MODE=maybe", `x.env:1: SHADOW_MODE: "maybe" is neither true nor false`},
	} {
		values, err := Read("x.env", c.text)
		if err == nil {
			_, err = c.p.Convert(values, nil, "")
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	if _, err := Ratelimit.Convert(nil, nil, "testdata/none"); err == nil || !strings.Contains(err.Error(), "testdata/none") {
		t.Errorf("rules that are not there: %v", err)
	}
}

func TestRead(t *testing.T) {
	values, err := Read("f", "# A=1\n\n A = 1 \nexport B='x y'\nC=\"\"\nD=a=b\r\n")
	if got := fmt.Sprint(values); err != nil || got != "[{A 1 f:3} {B x y f:4} {C  f:5} {D a=b f:6}]" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestGuides: the table of settings in each guide is made of the product's.
func TestGuides(t *testing.T) {
	for _, p := range products {
		file := "../../docs/start/migrate-" + p.Name + ".md"
		text, err := os.ReadFile(file)
		do(t, err)
		before, rest, found := strings.Cut(string(text), "<!-- settings -->\n")
		_, after, closed := strings.Cut(rest, "<!-- end of settings -->\n")
		if !found || !closed {
			t.Fatalf("%s has no place for settings", file)
		}
		golden(t, file, before+"<!-- settings -->\n"+p.table()+"<!-- end of settings -->\n"+after)
	}
}

// table is a Markdown table of the settings.
func (p *Product) table() string {
	var b strings.Builder
	b.WriteString("| setting | sluice |\n|---|---|\n")
	for _, s := range p.settings {
		text := s.text
		if s.fate != converted {
			text = s.fate + ": " + text
		}
		text = regexp.MustCompile(`--[a-z-]+`).ReplaceAllString(text, "`$0`")
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.Join(strings.Fields(s.names), "`, `"), text)
	}
	return b.String()
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
