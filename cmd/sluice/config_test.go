package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func parsed(t *testing.T, args ...string) (*settings, *pflag.FlagSet) {
	t.Helper()
	s := new(settings)
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.register(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return s, f
}

func fromMap(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSettingsPrecedence(t *testing.T) {
	path := writeFile(t, "name: from-file\nbind: 127.0.0.2\ngrpc-port: 1\njoin:\n  - a\n  - b:7000\ncheck-timeout: 2s\n")
	s, f := parsed(t, "--config", path, "--name", "from-line")
	env := map[string]string{"SLUICE_NAME": "from-env", "SLUICE_GRPC_PORT": "2", "SLUICE_RULES": "from-env"}
	if err := settle(f, fromMap(env)); err != nil {
		t.Fatal(err)
	}
	if s.Name != "from-line" || s.GRPCPort != 2 || s.Bind != "127.0.0.2" || s.Rules != "from-env" || s.CheckTimeout != 2*time.Second {
		t.Errorf("got %+v", s)
	}
	if strings.Join(s.Join, " ") != "a b:7000" {
		t.Errorf("join = %q", s.Join)
	}
}

// Every flag can be set in all three ways; the names are derived, so that a new
// flag cannot be forgotten.
func TestEveryFlagHasEnvironmentAndFile(t *testing.T) {
	_, all := parsed(t)
	all.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "config" {
			return
		}
		value := map[string]string{"uint16": "9", "float64": "9", "bool": "true", "int": "9", "duration": "9s", "string": "nine", "stringSlice": "nine"}[flag.Value.Type()]
		if value == "" {
			t.Fatalf("--%s: no sample for type %s", flag.Name, flag.Value.Type())
		}
		_, byEnv := parsed(t)
		if err := settle(byEnv, fromMap(map[string]string{envName(flag.Name): value})); err != nil {
			t.Errorf("%s: %v", envName(flag.Name), err)
		}
		_, byFile := parsed(t, "--config", writeFile(t, flag.Name+": "+value+"\n"))
		if err := settle(byFile, fromMap(nil)); err != nil {
			t.Errorf("%s in a file: %v", flag.Name, err)
		}
		for _, f := range []*pflag.FlagSet{byEnv, byFile} {
			if got := f.Lookup(flag.Name).Value.String(); !strings.Contains(got, value) {
				t.Errorf("--%s = %s, want %s", flag.Name, got, value)
			}
		}
	})
}

func TestWrongSettings(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        map[string]string
		want       []string
	}{
		{"bad variable", "", map[string]string{"SLUICE_GRPC_PORT": "seventy"}, []string{"SLUICE_GRPC_PORT", "seventy"}},
		{"port out of range", "", map[string]string{"SLUICE_HTTP_PORT": "70000"}, []string{"SLUICE_HTTP_PORT", "70000"}},
		{"unknown key", "nam: x\n", nil, []string{":1", "nam", "no such setting"}},
		{"bad value", "name: x\n\ncheck-timeout: soon\n", nil, []string{":3", "check-timeout", "soon"}},
		{"twice", "name: x\nname: y\n", nil, []string{"name"}},
		{"no mapping", "- name\n", nil, []string{":1", "mapping"}},
		{"nested", "name: {a: b}\n", nil, []string{":1", "name"}},
		{"list for one value", "grpc-port: [1]\n", nil, []string{":1", "grpc-port", "list"}},
		{"nested list", "join: [[a]]\n", nil, []string{":1", "join"}},
		{"not YAML", "a: [\n", nil, []string{"--config"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var args []string
			if c.file != "" {
				args = []string{"--config", writeFile(t, c.file)}
			}
			_, f := parsed(t, args...)
			err := settle(f, fromMap(c.env))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
		})
	}
}

func TestValidateNamesTheFlag(t *testing.T) {
	for flag, args := range map[string][]string{
		"--name":             {"--name", "a b/c"},
		"--bind":             {"--bind", "localhost"},
		"--bootstrap-expect": {"--bind", "192.0.2.1", "--insecure", "secret"},
		"--secret-file":      {"--bind", "192.0.2.1", "--bootstrap-expect", "1"},
		"--insecure":         {"--insecure", "secret,all"},
		"--advertise":        {"--advertise", "pod-1"},
		"--unknown-domain":   {"--unknown-domain", "maybe"},
		"--check-timeout":    {"--check-timeout", "-1s"},
		"--join-timeout":     {"--join-timeout", "0s"},
		"--shutdown-timeout": {"--shutdown-timeout", "0s"},
		"--max-entries":      {"--max-entries", "-1"},
		"--memory-limit":     {"--memory-limit", "much"},
		"--when-full":        {"--when-full", "panic"},
		"--settle-window":    {"--settle-window", "25h"},
		"--replicas":         {"--replicas", "3"},
		"--zone":             {"--zone", "eu central"},
		"--otlp-endpoint":    {"--otlp-endpoint", "collector:4317"},
		"--trace-sample":     {"--trace-sample", "1.5"},
		"--trace-callers":    {"--trace-callers", "-1"},
		"--admin-addr":       {"--admin-addr", "7464"},
		"--metrics-addr":     {"--metrics-addr", "7465"},
		"--grpc-max":         {"--grpc-max-connection-age", "10ms"},
		"--admin-anywhere":   {"--admin-addr", "192.0.2.1:7464"},
		"--log-level":        {"--log-level", "loud"},
		"--log-format":       {"--log-format", "xml"},
	} {
		s, _ := parsed(t, args...)
		err := s.validate()
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%v: %v", args, err)
		}
	}
	for _, c := range []struct{ flag, args string }{
		{"--tls-key: missing", "--tls-cert c"},
		{"--tls-cert: missing", "--tls-key k"},
		{"--tls-client-ca: only with --tls-cert", "--tls-client-ca a"},
		{"--tls-client-auth: only with --tls-cert", "--tls-client-auth require"},
		{"--tls-client-ca: missing", "--tls-cert c --tls-key k --tls-client-auth request"},
		{"--tls-client-auth: give request", "--tls-cert c --tls-key k --tls-client-ca a"},
		{`--tls-client-auth: "all"`, "--tls-client-auth all"},
		{`--tls-min-version: "1.1"`, "--tls-min-version 1.1"},
		{"--peer-tls-key: missing", "--peer-tls-cert c --peer-tls-ca a"},
		{"--peer-tls-ca: missing", "--peer-tls-cert c --peer-tls-key k"},
		{"--peer-tls-cert: missing", "--peer-tls-key k --peer-tls-ca a"},
		{"--peer-tls-name: is empty", "--peer-tls-name="},
		{"--peer-tls-name: has {region}, and --region is not given", "--peer-tls-name={name}.{region}.x"},
		{`--peer-tls: "on"`, "--peer-tls on --peer-tls-cert c --peer-tls-key k --peer-tls-ca a"},
		{"--peer-tls-cert: missing beside --peer-tls=accept", "--peer-tls accept"},
	} {
		s, _ := parsed(t, append(strings.Fields(c.args), "--bootstrap-expect", "1")...)
		if err := s.validate(); err == nil || !strings.Contains(err.Error(), c.flag) || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("%s: %v, want %s", c.args, err, c.flag)
		}
	}
	for _, args := range []string{
		"--tls-cert c --tls-key k", "--tls-cert c --tls-key k --tls-client-ca a --tls-client-auth require",
		"--peer-tls-cert c --peer-tls-key k --peer-tls-ca a --peer-tls-name *.x", "--tls-min-version 1.2",
		"--peer-tls off --peer-tls-cert c --peer-tls-key k --peer-tls-ca a", "--peer-tls off",
	} {
		s, _ := parsed(t, append(strings.Fields(args), "--bootstrap-expect", "1")...)
		if err := s.validate(); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	for _, c := range []struct {
		args  string
		wrong bool
	}{
		{"", false}, // --bind is 127.0.0.1
		{"--bind 0.0.0.0 --secret-file s", true}, {"--bind :: --secret-file s", true}, {"--bind 192.0.2.1 --secret-file s", true},
		{"--bind 192.0.2.1 --secret-file s --bootstrap-expect 1", false}, {"--bind 192.0.2.1 --insecure secret --bootstrap-expect 1", false},
		{"--bind 192.0.2.1 --bootstrap-expect 1", true}, {"--bind 0.0.0.0 --join a", true}, {"--bootstrap-expect -1 --bind 127.0.0.1", true},
		{"--bind 127.0.0.1", false}, {"--bind 127.0.9.1", false}, {"--bind ::1", false},
		{"--bootstrap-expect 1", false}, {"--bootstrap-expect 3", false}, {"--bind 127.0.0.1 --bootstrap-expect 2", false},
		{"--join a --name n9 --bootstrap-expect 3 --bootstrap-names n0,n1,n2", false}, {"--join a --name n2 --bootstrap-expect 3 --bootstrap-names n0,n1,n2", false},
		{"--join a --bootstrap-expect 4 --bootstrap-names n0,n1,n2", true}, {"--join a --bootstrap-expect 1 --bootstrap-names n0,n1", true},
		{"--join a", false}, {"--join a --bind 127.0.0.1", false}, {"--join a --bootstrap-expect 3", false},
	} {
		s, _ := parsed(t, strings.Fields(c.args)...)
		if err := s.validate(); (err != nil) != c.wrong {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	s, _ := parsed(t)
	if err := s.validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if s.Name == "" {
		t.Error("no name by default")
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
		err := s.validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
