package manifests

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composeService has the fields that the compose file uses; the decoder rejects others.
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
	var file struct {
		Node     composeService    `yaml:"x-node"`
		Settings map[string]string `yaml:"x-settings"`
		Services map[string]composeService
		Networks map[string]struct{}
		Secrets  map[string]struct{ File string }
	}
	const dir = root + "/deploy/compose"
	data, err := os.ReadFile(dir + "/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	want := func(ok bool, format string, args ...any) {
		t.Helper()
		if !ok {
			t.Errorf(format, args...)
		}
	}
	published := map[string]bool{}
	for name, s := range file.Services {
		for setting := range s.Environment {
			_, ok := settings[setting]
			want(ok, "%s: %s is not a setting of sluice serve", name, setting)
		}
		n, _ := strconv.Atoi(s.Environment["SLUICE_BOOTSTRAP_EXPECT"])
		want(2*n > len(file.Services) && n <= len(file.Services), "%s: SLUICE_BOOTSTRAP_EXPECT %d must be a majority of the %d nodes", name, n, len(file.Services))
		_, ok := file.Networks["cluster"]
		want(ok && len(s.Networks) == 1, "%s: want the network cluster", name)
		want(slices.Contains(s.Networks["cluster"].Aliases, s.Environment["SLUICE_JOIN"]), "%s: the network does not resolve SLUICE_JOIN", name)
		want(s.Environment["SLUICE_NAME"] == name && s.ReadOnly && slices.Equal(s.CapDrop, []string{"ALL"}) && slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}),
			"%s: wrong name, or more rights than a node needs", name)
		if len(s.Volumes) != 1 || len(s.Secrets) != 1 || len(s.Ports) != 2 {
			t.Fatalf("%s: want a volume, a secret and two ports: %+v", name, s)
		}
		from, to, _ := strings.Cut(s.Volumes[0], ":")
		want(to == s.Environment["SLUICE_RULES"]+":ro", "%s: %s is not SLUICE_RULES, read-only", name, to)
		want(s.Environment["SLUICE_SECRET_FILE"] == "/run/secrets/"+s.Secrets[0], "%s: SLUICE_SECRET_FILE is not the secret", name)
		for _, source := range []string{from, file.Secrets[s.Secrets[0]].File} {
			_, err := os.Stat(filepath.Join(dir, source))
			want(err == nil && source != "", "%s: %q: %v", name, source, err)
		}
		for i, p := range s.Ports {
			at := strings.LastIndex(p, ":")
			inside := settings[[]string{"SLUICE_GRPC_PORT", "SLUICE_HTTP_PORT"}[i]]
			want(strings.HasPrefix(p, "127.0.0.1:") && p[at+1:] == inside && !published[p[:at]], "%s: %s must publish port %s once, on 127.0.0.1", name, p, inside)
			published[p[:at]] = true
		}
	}
	want(len(file.Services) == 3, "%d services, want 3", len(file.Services))
}

// TestUpUsedPort: up names an address at which something listens already, before it starts a container.
func TestUpUsedPort(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"up", "nodes"} {
		text, err := os.ReadFile(root + "/deploy/compose/" + name)
		if err != nil {
			t.Fatal(err)
		}
		last := strings.ReplaceAll(string(text), "127.0.0.1:7481", used.Addr().String())
		write(name, regexp.MustCompile(`127\.0\.0\.1:74\d\d\b`).ReplaceAllString(last, "127.0.0.1:1")) // where nothing listens
	}
	write("docker", "#!/bin/sh\ncase \"$*\" in *version*|*\" ps \"*) ;; *) echo docker \"$@\"; exit 1 ;; esac\n") // it has no containers
	up := exec.Command("bash", filepath.Join(dir, "up"))
	up.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := up.CombinedOutput(); err == nil || string(out) != "something listens on "+used.Addr().String()+", perhaps the nodes of make run: stop it first\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestDockerfile: the image holds the binary and CA certificates, runs it without root, and exposes its ports.
func TestDockerfile(t *testing.T) {
	data, err := os.ReadFile(root + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			got = append(got, line)
		}
	}
	p := func(name string) string { return settings["SLUICE_"+name+"_PORT"] }
	want := []string{
		"FROM scratch", "ARG BINARY=bin/image/sluice", "COPY bin/image/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt", "COPY ${BINARY} /sluice", "USER 65532:65532", "ENV SLUICE_BIND=0.0.0.0",
		"EXPOSE " + p("GRPC") + "/tcp " + p("HTTP") + "/tcp " + p("PEER") + "/tcp " + p("GOSSIP") + "/tcp " + p("GOSSIP") + "/udp",
		`ENTRYPOINT ["/sluice"]`, `CMD ["serve"]`, `HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["/sluice", "health", "--timeout", "2s"]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("Dockerfile:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
