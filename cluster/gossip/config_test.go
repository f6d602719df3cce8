package gossip

import (
	"strings"
	"testing"
	"time"
)

func valid() Config { return Config{Name: "n", Placement: 1} }

func TestValidate(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Fatalf("the least configuration: %v", err)
	}
	full := valid()
	full.Boot = NewBoot(time.Now(), 1)
	full.Bind, full.Advertise = "127.0.0.1", "node.example:9"
	full.Peer, full.GRPC, full.HTTP = "0.0.0.0:1", "[::]:2", "host:3"
	full.Join = []string{"a", "a:1", "10.0.0.1", "10.0.0.1:1", "::1", "[::1]", "[::1]:1", "a.b.c."}
	full.Version = "v1.2.3"
	if err := full.Validate(); err != nil {
		t.Fatalf("a full configuration: %v", err)
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"no name", func(c *Config) { c.Name = "" }, []string{"Name", "empty"}},
		{"slash in name", func(c *Config) { c.Name = "a/b" }, []string{"Name", `"a/b"`, "'/'"}},
		{"space in name", func(c *Config) { c.Name = "a b" }, []string{"Name", "' '"}},
		{"long name", func(c *Config) { c.Name = strings.Repeat("a", 129) }, []string{"Name", "129", "128"}},
		{"strange boot", func(c *Config) { c.Boot = "now" }, []string{"Boot", "now"}},
		{"bind port", func(c *Config) { c.Bind = "127.0.0.1:70000" }, []string{"Bind", "70000"}},
		{"bind garbage", func(c *Config) { c.Bind = "1:2:3" }, []string{"Bind", "1:2:3"}},
		{"advertise nothing", func(c *Config) { c.Advertise = ":7463" }, []string{"Advertise", "want a host"}},
		{"peer without port", func(c *Config) { c.Peer = "host" }, []string{"Peer", "want a port"}},
		{"grpc port 0", func(c *Config) { c.GRPC = "host:0" }, []string{"GRPC", "want a port"}},
		{"http garbage", func(c *Config) { c.HTTP = "http://host:80" }, []string{"HTTP", "http://host:80"}},
		{"join empty", func(c *Config) { c.Join = []string{"a", ""} }, []string{"Join[1]", "want a host"}},
		{"join port 0", func(c *Config) { c.Join = []string{"a:0"} }, []string{"Join[0]", "a:0"}},
		{"join without port after colon", func(c *Config) { c.Join = []string{"a:"} }, []string{"Join[0]", "after the colon"}},
		{"join zone", func(c *Config) { c.Join = []string{"fe80::1%eth0"} }, []string{"Join[0]", "zone"}},
		{"join list in one", func(c *Config) { c.Join = []string{"a, b"} }, []string{"Join[0]", "' '"}},
		{"join path", func(c *Config) { c.Join = []string{"name/host"} }, []string{"Join[0]", "'/'"}},
		{"join long", func(c *Config) { c.Join = []string{strings.Repeat("a", 254)} }, []string{"Join[0]", "254"}},
		{"placement", func(c *Config) { c.Placement = 0 }, []string{"Placement", "0"}},
		{"version", func(c *Config) { c.Version = strings.Repeat("v", 65) }, []string{"Version", "65"}},
		{"zone", func(c *Config) { c.Zone = "eu central" }, []string{"Zone", "' '"}},
		{"zone too long", func(c *Config) { c.Zone = strings.Repeat("z", 64) }, []string{"Zone", "64"}},
		{"negative time", func(c *Config) { c.JoinTimeout = -1 }, []string{"JoinTimeout", "-1ns"}},
		{"two at once", func(c *Config) { c.Name, c.Placement = "", -1 }, []string{"Name", "Placement"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := valid()
			c.change(&config)
			err := config.Validate()
			if err == nil {
				t.Fatal("Validate accepts it")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if _, opened := Open(t.Context(), config); opened == nil || opened.Error() != err.Error() {
				t.Errorf("Open: %v", opened)
			}
		})
	}
}

func TestNewBoot(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	if got, want := NewBoot(at, 0xbeef), "1886caf21c963206-0000beef"; got != want {
		t.Errorf("NewBoot = %s, want %s", got, want)
	}
	for _, later := range []time.Duration{1, time.Second, 24 * 365 * time.Hour} {
		if NewBoot(at.Add(later), 0) <= NewBoot(at, 0xffffffff) {
			t.Errorf("a boot %v later does not sort higher", later)
		}
	}
	if a, b := randomBoot(), randomBoot(); a == b || !validBoot(a) {
		t.Errorf("randomBoot: %s, %s", a, b)
	}
	for _, bad := range []string{"", "1886d0f6bd6ff206", "1886d0f6bd6ff206-0000BEEF", "1886d0f6bd6ff206 0000beef", "1886d0f6bd6ff206-0000beef0"} {
		if validBoot(bad) {
			t.Errorf("validBoot(%q)", bad)
		}
	}
	if !validBoot(NewBoot(time.Time{}, 0)) {
		t.Error("a clock before 1970 gives an invalid boot id")
	}
}
