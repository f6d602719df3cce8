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
	do(t, f.Parse(args))
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
	do(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSettingsPrecedence(t *testing.T) {
	path := writeFile(t, "name: from-file\nbind: 127.0.0.2\ngrpc-port: 1\njoin:\n  - a\n  - b:7000\ncheck-timeout: 2s\n")
	s, f := parsed(t, "--config", path, "--name", "from-line")
	env := map[string]string{"SLUICE_NAME": "from-env", "SLUICE_GRPC_PORT": "2", "SLUICE_RULES": "from-env"}
	do(t, settle(f, fromMap(env)))
	if s.Name != "from-line" || s.GRPCPort != 2 || s.Bind != "127.0.0.2" || s.Rules != "from-env" || s.CheckTimeout != 2*time.Second {
		t.Errorf("got %+v", s)
	}
	if strings.Join(s.Join, " ") != "a b:7000" {
		t.Errorf("join = %q", s.Join)
	}
	s, f = parsed(t, "--config", writeFile(t, "region: eu\nregions: [us=127.0.0.1:1, \"127.0.0.2:1\", ap=127.0.0.3]\n"))
	if err := settle(f, fromMap(nil)); err != nil || s.validate() != nil || strings.Join(s.Regions, " ") != "us=127.0.0.1:1 127.0.0.2:1 ap=127.0.0.3" {
		t.Errorf("regions from a file: %v, %q", err, s.Regions)
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

// TestValidate: which settings are valid together, and which flag an error names.
func TestValidate(t *testing.T) {
	const (
		peer   = " --peer-tls-cert c --peer-tls-key k --peer-tls-ca a"
		names  = " --bootstrap-names n0,n1,n2"
		beyond = "--region eu --bind 192.0.2.1 --bootstrap-expect 1 --secret-file s --regions us=10.0.0.1,10.0.0.2,ap=ap.example:99"
	)
	for _, c := range []struct{ args, want string }{
		{"", ""}, // --bind is 127.0.0.1
		{"--name a/c", "--name"}, {"--bind localhost", "--bind"}, {"--insecure secret,all", "--insecure"}, {"--advertise pod-1", "--advertise"},
		{"--unknown-domain maybe", "--unknown-domain"}, {"--check-timeout -1s", "--check-timeout"}, {"--join-timeout 0s", "--join-timeout"},
		{"--shutdown-timeout 0s", "--shutdown-timeout"}, {"--max-entries -1", "--max-entries"}, {"--memory-limit much", "--memory-limit"},
		{"--when-full panic", "--when-full"}, {"--settle-window 25h", "--settle-window"}, {"--replicas 3", "--replicas"}, {"--zone eu/central", "--zone"},
		{"--otlp-endpoint collector:4317", "--otlp-endpoint"}, {"--trace-sample 1.5", "--trace-sample"}, {"--trace-callers -1", "--trace-callers"},
		{"--metrics-addr 7465", "--metrics-addr"}, {"--grpc-max-connection-age 10ms", "--grpc-max-connection-age"},
		{"--log-level loud", "--log-level"}, {"--log-format xml", "--log-format"},

		{"--tls-cert c --tls-key k", ""}, {"--tls-cert c --tls-key k --tls-client-ca a --tls-client-auth require", ""}, {"--tls-min-version 1.2", ""},
		{"--tls-cert c", "--tls-key: missing"}, {"--tls-key k", "--tls-cert: missing"}, {"--tls-client-ca a", "--tls-client-ca: only with --tls-cert"},
		{"--tls-client-auth require", "--tls-client-auth: only with --tls-cert"}, {"--tls-client-auth all", `--tls-client-auth: "all"`},
		{"--tls-cert c --tls-key k --tls-client-auth request", "--tls-client-ca: missing"},
		{"--tls-cert c --tls-key k --tls-client-ca a", "--tls-client-auth: give request"}, {"--tls-min-version 1.1", `--tls-min-version: "1.1"`},
		{"--peer-tls off", ""}, {"--peer-tls off" + peer, ""}, {"--peer-tls-name *.x" + peer, ""},
		{"--peer-tls-cert c --peer-tls-ca a", "--peer-tls-key: missing"}, {"--peer-tls-cert c --peer-tls-key k", "--peer-tls-ca: missing"},
		{"--peer-tls-key k --peer-tls-ca a", "--peer-tls-cert: missing"}, {"--peer-tls-name=", "--peer-tls-name: is empty"},
		{"--peer-tls-name={name}.{region}.x", "--peer-tls-name: has {region}, and --region is not given"}, {"--peer-tls on" + peer, `--peer-tls: "on"`},
		{"--peer-tls accept", "--peer-tls-cert: missing beside --peer-tls=accept"},

		{"--bind 127.0.0.1", ""}, {"--bind 127.0.9.1", ""}, {"--bind ::1", ""}, {"--bind 127.0.0.1 --bootstrap-expect 2", ""},
		{"--bind 0.0.0.0 --secret-file s", "--bootstrap-expect"}, {"--bind :: --secret-file s", "--bootstrap-expect"},
		{"--bind 192.0.2.1 --secret-file s", "--bootstrap-expect"}, {"--bind 192.0.2.1 --insecure secret", "--bootstrap-expect"},
		{"--bind 192.0.2.1 --secret-file s --bootstrap-expect 1", ""}, {"--bind 192.0.2.1 --insecure secret --bootstrap-expect 1", ""},
		{"--bind 192.0.2.1 --bootstrap-expect 1", "--secret-file"}, {"--bind 0.0.0.0 --join a", "--secret-file"},
		{"--bootstrap-expect -1", "--bootstrap-expect"}, {"--bootstrap-expect 1", ""}, {"--bootstrap-expect 3", ""},
		{"--join a --name n9 --bootstrap-expect 3" + names, ""}, {"--join a --name n2 --bootstrap-expect 3" + names, ""},
		{"--join a --bootstrap-expect 4" + names, "--bootstrap-"}, {"--join a --bootstrap-expect 1 --bootstrap-names n0,n1", "--bootstrap-"},
		{"--join a", ""}, {"--join a --bind 127.0.0.1", ""}, {"--join a --bootstrap-expect 3", ""},

		{"--admin-addr 127.0.0.1:7464", ""}, {"--admin-addr 127.9.9.9:7464", ""}, {"--admin-addr [::1]:7464", ""}, {"--admin-addr localhost:7464", ""},
		{"--admin-addr 0.0.0.0:7464 --admin-anywhere", ""}, {"--admin-addr :7464", "--admin-anywhere"}, {"--admin-addr 0.0.0.0:7464", "--admin-anywhere"},
		{"--admin-addr node1:7464", "--admin-anywhere"}, {"--admin-addr 192.0.2.1:7464", "--admin-anywhere"}, {"--admin-addr 127.0.0.1", "--admin-addr"},

		{"--region eu --regions us=127.0.0.1:1,localhost:2,ap=127.0.0.2", ""}, {"--region eu --regions eu=127.0.0.9,us=127.0.0.1:1", ""},
		{"--region eu --regions us=127.0.0.1:1 --regions ap=127.0.0.1:2", ""}, {"--region eu", "--regions: missing beside --region=eu"},
		{"--regions us=127.0.0.1:1", "--region: missing beside --regions"},
		{"--region EU --regions us=127.0.0.1:1", `--region: "EU": want 1 to 63 of a-z, 0-9 and -`},
		{"--region eu --regions eu=127.0.0.1", `--regions: no region but this one, "eu"`},
		{"--region eu --regions us=127.0.0.1:1,us=127.0.0.1:2", `--regions: region "us" is given twice`},
		{"--region eu --regions us=127.0.0.1:99999", `--regions: address "127.0.0.1:99999": port "99999"`},
		{beyond + peer, ""}, {beyond, "--peer-tls: is not require, and connections to other regions cross networks"},
		{beyond + peer + " --peer-tls accept", "--peer-tls: is not require"}, {beyond + " --insecure region-tls", ""},
		{"--region eu --regions us=us.example", "--peer-tls: is not require"}, {"--region eu --regions us=us.example --insecure region-tls", ""},
	} {
		s, _ := parsed(t, strings.Fields(c.args)...)
		if err := s.validate(); (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v; want %q", c.args, err, c.want)
		}
		if s.Name == "" {
			t.Errorf("%s: no name", c.args)
		}
	}
}
