package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Compose is the part of a compose file that the manifests use. Other fields are
// errors, so that a slip of the pen is one as well.
type Compose struct {
	// Node and Settings are what the services share by YAML anchors.
	Node     composeService    `yaml:"x-node"`
	Settings map[string]string `yaml:"x-settings"`

	Services map[string]composeService `yaml:"services"`
	Networks map[string]struct{}       `yaml:"networks"`
	Secrets  map[string]struct {
		File string `yaml:"file"`
	} `yaml:"secrets"`
}

type composeService struct {
	Image       string            `yaml:"image"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	Volumes     []string          `yaml:"volumes"`
	Secrets     []string          `yaml:"secrets"`
	Networks    map[string]struct {
		Aliases []string `yaml:"aliases"`
	} `yaml:"networks"`
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
	Restart         string   `yaml:"restart"`
	Healthcheck     struct {
		Test        []string `yaml:"test"`
		Interval    string   `yaml:"interval"`
		Timeout     string   `yaml:"timeout"`
		StartPeriod string   `yaml:"start_period"`
	} `yaml:"healthcheck"`
}

// ReadCompose decodes a compose file strictly.
func ReadCompose(data []byte) (*Compose, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	c := &Compose{}
	return c, d.Decode(c)
}

// Judge returns what is wrong with c, whose file is in dir of fsys, for a
// program with these settings and ports.
func (c *Compose) Judge(fsys fs.FS, dir string, settings map[string]string, ports Ports) []string {
	var faults []string
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	exists := func(file string) bool {
		_, err := fs.Stat(fsys, path.Join(dir, file))
		return !errors.Is(err, fs.ErrNotExist)
	}
	want(len(c.Services) == 3, "%d services, want 3", len(c.Services))
	for name, s := range c.Secrets {
		want(exists(s.File), "secret %s: there is no file %s", name, s.File)
	}
	for name, s := range c.Services {
		expect, err := strconv.Atoi(s.Environment["SLUICE_BOOTSTRAP_EXPECT"])
		want(err == nil && expect <= len(c.Services) && 2*expect > len(c.Services),
			"%s: SLUICE_BOOTSTRAP_EXPECT is %q, want more than half of the %d nodes", name, s.Environment["SLUICE_BOOTSTRAP_EXPECT"], len(c.Services))
	}
	published := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Services)) {
		s := c.Services[name]
		for variable := range s.Environment {
			_, ok := settings[variable]
			want(ok, "%s: %s is no setting of sluice serve", name, variable)
		}
		want(s.Environment["SLUICE_NAME"] == name, "%s: is named %q", name, s.Environment["SLUICE_NAME"])

		for network, joined := range s.Networks {
			_, ok := c.Networks[network]
			want(ok, "%s: there is no network %s", name, network)
			want(slices.Contains(joined.Aliases, s.Environment["SLUICE_JOIN"]), "%s: joins %q, which is nobody's name", name, s.Environment["SLUICE_JOIN"])
		}
		mounted := ""
		for _, v := range s.Volumes {
			part := strings.Split(v, ":")
			if len(part) != 3 || part[2] != "ro" {
				want(false, "%s: volume %s is not mounted read-only", name, v)
				continue
			}
			want(exists(part[0]), "%s: there is nothing at %s", name, part[0])
			mounted = part[1]
		}
		want(mounted != "" && s.Environment["SLUICE_RULES"] == mounted, "%s: rules are mounted at %q and read from %q", name, mounted, s.Environment["SLUICE_RULES"])
		for _, secret := range s.Secrets {
			_, ok := c.Secrets[secret]
			want(ok && s.Environment["SLUICE_SECRET_FILE"] == "/run/secrets/"+secret, "%s: secret %s is not what SLUICE_SECRET_FILE names", name, secret)
		}
		want(len(s.Secrets) == 1, "%s: %d secrets, want 1", name, len(s.Secrets))

		var inside []string
		for _, p := range s.Ports {
			i := strings.LastIndex(p, ":")
			if other := published[p[:i]]; other != "" {
				want(false, "%s: %s is published by %s too", name, p[:i], other)
			}
			published[p[:i]] = name
			want(strings.HasPrefix(p, "127.0.0.1:"), "%s: port %s is published to the world", name, p)
			inside = append(inside, p[i+1:])
		}
		want(slices.Equal(inside, []string{strconv.Itoa(int(ports.GRPC)), strconv.Itoa(int(ports.HTTP))}), "%s: publishes ports %v of the node", name, inside)

		want(s.ReadOnly && slices.Equal(s.CapDrop, []string{"ALL"}) && slices.Contains(s.SecurityOpt, "no-new-privileges:true"),
			"%s: has more rights than a node needs", name)
	}
	return faults
}
