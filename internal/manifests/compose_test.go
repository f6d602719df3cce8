package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composeService has the fields that the compose file uses.
type composeService struct {
	Image, Restart          string
	Environment             map[string]string
	Ports, Volumes, Secrets []string
	Networks                map[string]struct{ Aliases []string }
	ReadOnly                bool     `yaml:"read_only"`
	CapDrop                 []string `yaml:"cap_drop"`
	SecurityOpt             []string `yaml:"security_opt"`
	StopGracePeriod         string   `yaml:"stop_grace_period"`
	Healthcheck             struct {
		Test              []string
		Interval, Timeout string
		StartPeriod       string `yaml:"start_period"`
	}
}

func TestCompose(t *testing.T) {
	const dir = root + "/deploy/compose"
	data, err := os.ReadFile(dir + "/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Node     composeService    `yaml:"x-node"`
		Settings map[string]string `yaml:"x-settings"`
		Services map[string]composeService
		Networks map[string]struct{}
		Secrets  map[string]struct{ File string }
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	exists := func(name string) {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if len(file.Services) != 3 {
		t.Errorf("%d services, want 3", len(file.Services))
	}
	published := map[string]bool{}
	for name, s := range file.Services {
		for setting := range s.Environment {
			if _, ok := settings[setting]; !ok {
				t.Errorf("%s: %s is not a setting of sluice serve", name, setting)
			}
		}
		if n, err := strconv.Atoi(s.Environment["SLUICE_BOOTSTRAP_EXPECT"]); err != nil || 2*n <= len(file.Services) || n > len(file.Services) {
			t.Errorf("%s: SLUICE_BOOTSTRAP_EXPECT %d must be a majority of the %d nodes", name, n, len(file.Services))
		}
		for network, joined := range s.Networks {
			if _, ok := file.Networks[network]; !ok || !slices.Contains(joined.Aliases, s.Environment["SLUICE_JOIN"]) {
				t.Errorf("%s: network %s does not resolve SLUICE_JOIN", name, network)
			}
		}
		for _, v := range s.Volumes {
			from, to, _ := strings.Cut(v, ":")
			exists(from)
			if to != s.Environment["SLUICE_RULES"]+":ro" {
				t.Errorf("%s: %s is not SLUICE_RULES, read-only", name, v)
			}
		}
		for _, secret := range s.Secrets {
			exists(file.Secrets[secret].File)
			if s.Environment["SLUICE_SECRET_FILE"] != "/run/secrets/"+secret {
				t.Errorf("%s: SLUICE_SECRET_FILE is not secret %s", name, secret)
			}
		}
		if len(s.Volumes) != 1 || len(s.Secrets) != 1 || len(s.Ports) != 2 || s.Environment["SLUICE_NAME"] != name {
			t.Errorf("%s: want one volume, one secret, two ports and its name: %+v", name, s)
		}
		for i, p := range s.Ports {
			at := strings.LastIndex(p, ":")
			want := settings[[]string{"SLUICE_GRPC_PORT", "SLUICE_HTTP_PORT"}[min(i, 1)]]
			if !strings.HasPrefix(p, "127.0.0.1:") || p[at+1:] != want || published[p[:at]] {
				t.Errorf("%s: %s must publish port %s once, on 127.0.0.1", name, p, want)
			}
			published[p[:at]] = true
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: the container has more rights than a node needs", name)
		}
	}
}

func TestDockerfile(t *testing.T) {
	data, err := os.ReadFile(root + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	p := func(name string) string { return settings["SLUICE_"+name+"_PORT"] }
	for _, line := range []string{
		"FROM scratch", "COPY ${BINARY} /sluice", "USER 65532:65532", "ENV SLUICE_BIND=0.0.0.0", `ENTRYPOINT ["/sluice"]`, `CMD ["serve"]`,
		"EXPOSE " + p("GRPC") + "/tcp " + p("HTTP") + "/tcp " + p("PEER") + "/tcp " + p("GOSSIP") + "/tcp " + p("GOSSIP") + "/udp",
	} {
		if !strings.Contains(string(data), "\n"+line+"\n") {
			t.Errorf("Dockerfile: no line %q", line)
		}
	}
}
