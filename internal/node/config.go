package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/internal/certs"
	"github.com/sluice-project/sluice/limiter"
)

// Config is what a node can be told. The flags of `sluice serve` and their help say what each field means and what its
// default is; errors name these flags.
type Config struct {
	Name      string
	Bind      string
	Advertise string
	Join      []string
	// BootstrapExpect is 0 if it was not given; see expect.
	BootstrapExpect int
	BootstrapNames  []string

	GRPCPort, HTTPPort, PeerPort, GossipPort uint16

	Rules         string
	Callers       string
	MergeDomains  bool
	UnknownDomain string
	TopKeys       string
	Console       bool
	Insecure      []string
	SecretFile    string
	Secret        []byte // instead of SecretFile, for nodes of one process
	GossipKeyring string
	TLS           TLS

	EnvoyAllOrNothing, EnvoyResponseHeaders, EnvoyDynamicMetadata bool

	CheckTimeout    time.Duration
	Right           time.Duration // cluster.Config.Right, no flag
	Rejoin          time.Duration // gossip.Config.RejoinInterval, no flag
	JoinTimeout     time.Duration
	ShutdownTimeout time.Duration
	HandoverTimeout time.Duration
	ForgetAfter     time.Duration
	LostStateHold   time.Duration
	MaxClockSkew    time.Duration
	Replicas        int
	Zone            string
	MaxEntries      int
	WhenFull        string

	DataDir          string
	SnapshotInterval time.Duration

	Admin  Admin
	Bounds Bounds
	Traces Traces

	// Version is the program's, for metrics and other nodes.
	Version string
	// OwnProcess: the node is alone in its process, and sets the memory limit and the garbage collector of that.
	OwnProcess bool
}

// TLS is about certificates. Fields but ClientAuth, MinVersion, PeerName and Peers name files.
type TLS struct {
	Cert, Key, ClientCA, ClientAuth, MinVersion string

	PeerCert, PeerKey, PeerCA, PeerName string
	// Peers is --peer-tls; see peerMode.
	Peers string
}

// Admin says how operators reach a node: over a socket in Dir, which is there unless it cannot be made, and with a token
// from there at the admin port, if there is one.
type Admin struct {
	Dir      string
	Addr     string
	Anywhere bool
	// Hosts are the names that pages of this node may call it by, see httpapi.OwnPages.
	Hosts []string
	// Level is what PUT /loglevel changes; nil where somebody else made the logger.
	Level *slog.LevelVar
}

// Bounds are what a node bears of others. docs/limits.md has the bounds that nobody can set.
type Bounds struct {
	MaxConnections, MaxPerAddress int
	MaxCalls                      int
	MaxWait                       time.Duration
	// MaxInlineEntries is limiter.Config.InlineEntries.
	MaxInlineEntries int
	MemoryLimit      string

	// maxOwn is the most connections to the peer and the admin port; 0 means MaxConnections.
	maxOwn int
}

// Traces says which calls are traced, and where to.
type Traces struct {
	Endpoint string
	Share    float64
	Callers  int
}

// Defaults returns the values of flags that are not given.
func Defaults() Config {
	return Config{
		Bind: "127.0.0.1", GRPCPort: 7460, HTTPPort: 7461, PeerPort: 7462, GossipPort: 7463,
		UnknownDomain: "allow", TopKeys: "local", Console: true,
		TLS:          TLS{ClientAuth: "none", MinVersion: "1.3", PeerName: "{name}"},
		CheckTimeout: 1500 * time.Millisecond, JoinTimeout: 5 * time.Second, ShutdownTimeout: 2 * time.Second, HandoverTimeout: 25 * time.Second,
		ForgetAfter: 10 * time.Minute, MaxClockSkew: 500 * time.Millisecond, SnapshotInterval: 10 * time.Second,
		Replicas: 1, WhenFull: "evict",
		Bounds: Bounds{
			MaxConnections: 8192, MaxPerAddress: 1024, MaxCalls: 16_384, MaxWait: 10 * time.Millisecond, MaxInlineEntries: limiter.DefaultInlineEntries,
		},
		Traces: Traces{Share: 0.01, Callers: 100},
	}
}

// Validate checks what flag parsing cannot and fills defaults that depend on the host.
func (c *Config) Validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %w", flag, fmt.Errorf(format, args...)))
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			bad("name", "not given, and the host has none: %w", err)
		}
		c.Name = host
	}
	if err := gossip.ValidateName(c.Name); err != nil {
		bad("name", "%w", err)
	}
	if net.ParseIP(c.Bind) == nil {
		bad("bind", "%q is not an IP address", c.Bind)
	}
	if c.Advertise != "" && net.ParseIP(c.Advertise) == nil {
		bad("advertise", "%q is not an IP address", c.Advertise)
	}
	errs = append(errs, c.validateExpect(), c.validateSecret(), c.Bounds.validate(), c.Admin.validate(), c.Traces.validate(), c.TLS.validate())
	if c.UnknownDomain != "allow" && c.UnknownDomain != "error" {
		bad("unknown-domain", "%q is neither allow nor error", c.UnknownDomain)
	}
	if _, ok := topKeys[c.TopKeys]; !ok {
		bad("top-keys", "%q is none of off, local, on", c.TopKeys)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"check-timeout", c.CheckTimeout}, {"join-timeout", c.JoinTimeout}, {"shutdown-timeout", c.ShutdownTimeout},
		{"handover-timeout", c.HandoverTimeout}, {"forget-after", c.ForgetAfter}, {"max-clock-skew", c.MaxClockSkew},
	} {
		if d.value <= 0 {
			bad(d.flag, "%v is not above 0", d.value)
		}
	}
	if c.SnapshotInterval < 0 {
		bad("snapshot-interval", "%v is below 0", c.SnapshotInterval)
	}
	if c.LostStateHold < 0 {
		bad("lost-state-hold", "%v is below 0; give a time, or 0 for no bound", c.LostStateHold)
	}
	if c.Replicas < 1 || c.Replicas > 2 {
		bad("replicas", "%d is neither 1 nor 2", c.Replicas)
	}
	if err := gossip.ValidateZone(c.Zone); err != nil {
		bad("zone", "%w", err)
	}
	if c.MaxEntries < 0 {
		bad("max-entries", "%d is below 0", c.MaxEntries)
	}
	if _, ok := whenFull[c.WhenFull]; !ok {
		bad("when-full", "%q is neither evict nor deny", c.WhenFull)
	}
	_, err := c.counterBytes()
	return errors.Join(append(errs, err)...)
}

// insecureWords are the words of --insecure. Each lifts one check.
var insecureWords = []string{"secret"}

// validateSecret wants a secret where other machines reach this node.
func (c *Config) validateSecret() error {
	for _, word := range c.Insecure {
		if !slices.Contains(insecureWords, word) {
			return fmt.Errorf("--insecure: %q is none of %s", word, strings.Join(insecureWords, ", "))
		}
	}
	ip := net.ParseIP(c.Bind)
	if ip == nil || ip.IsLoopback() || c.Secret != nil || c.SecretFile != "" || slices.Contains(c.Insecure, "secret") {
		return nil
	}
	return fmt.Errorf("--secret-file: not given, and --bind %s is reached from other machines, any of which could join the cluster: make a secret for all nodes "+
		"(head -c 32 /dev/urandom | base64 > secret), or do without by --insecure=secret", c.Bind)
}

func (c *Config) validateExpect() error {
	switch ip := net.ParseIP(c.Bind); {
	case c.BootstrapExpect < 0:
		return fmt.Errorf("--bootstrap-expect: %d is below 0", c.BootstrapExpect)
	case len(c.BootstrapNames) > 0 && c.BootstrapExpect > len(c.BootstrapNames):
		return fmt.Errorf("--bootstrap-expect: %d nodes are more than --bootstrap-names has, which are %s", c.BootstrapExpect, strings.Join(c.BootstrapNames, ", "))
	case len(c.BootstrapNames) > 0 && 2*c.BootstrapExpect <= len(c.BootstrapNames):
		return fmt.Errorf("--bootstrap-expect: %d is not more than half of --bootstrap-names, which are %s: they could found two clusters",
			c.BootstrapExpect, strings.Join(c.BootstrapNames, ", "))
	case c.BootstrapExpect == 0 && len(c.Join) == 0 && ip != nil && !ip.IsLoopback():
		return fmt.Errorf("--bootstrap-expect: not given, nor --join, and --bind %s is reached from other machines: say with how many nodes a cluster is "+
			"founded, more than half of those that start (1 for a node that stays alone), or name the nodes to join with --join", c.Bind)
	}
	return nil
}

func (b *Bounds) validate() error {
	var errs []error
	for _, one := range []struct {
		flag  string
		value int
	}{{"max-connections", b.MaxConnections}, {"max-connections-per-address", b.MaxPerAddress}, {"max-calls", b.MaxCalls}} {
		if one.value < 1 {
			errs = append(errs, fmt.Errorf("--%s: %d is below 1", one.flag, one.value))
		}
	}
	if b.MaxInlineEntries < 1 || b.MaxInlineEntries > bucket.MaxKeyEntries {
		errs = append(errs, fmt.Errorf("--max-inline-log-entries: %d; want 1 to %d", b.MaxInlineEntries, bucket.MaxKeyEntries))
	}
	if b.MaxWait < 0 {
		errs = append(errs, fmt.Errorf("--max-wait: %v is below 0", b.MaxWait))
	}
	return errors.Join(errs...)
}

func (a *Admin) validate() error {
	if a.Addr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(a.Addr)
	if err != nil {
		return fmt.Errorf("--admin-addr: %w", err)
	}
	// A name may become another address, so of names only localhost is certain to be this machine.
	if ip, err := netip.ParseAddr(host); !a.Anywhere && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("--admin-addr: %s is no loopback address; whoever reads the token on its way to there operates this node. "+
			"If that is meant, add --admin-anywhere", a.Addr)
	}
	return nil
}

func (t *Traces) validate() error {
	var errs []error
	if t.Endpoint != "" {
		u, err := url.Parse(t.Endpoint)
		switch {
		case err != nil:
			errs = append(errs, errors.New("--otlp-endpoint: not a URL such as http://127.0.0.1:4317"))
		case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			errs = append(errs, errors.New("--otlp-endpoint: want http://host:port, or https://host:port for TLS"))
		case u.User != nil:
			errs = append(errs, errors.New("--otlp-endpoint: holds a password; give it in OTEL_EXPORTER_OTLP_HEADERS"))
		}
	}
	if !(t.Share >= 0 && t.Share <= 1) {
		errs = append(errs, fmt.Errorf("--trace-sample: %v is not between 0 and 1", t.Share))
	}
	if t.Callers < 0 {
		errs = append(errs, fmt.Errorf("--trace-callers: %d is below 0", t.Callers))
	}
	return errors.Join(errs...)
}

// validate checks what can be checked without the files.
func (t *TLS) validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %w", flag, fmt.Errorf(format, args...)))
	}
	auth, err := certs.ParseClientAuth(t.ClientAuth)
	if err != nil {
		bad("tls-client-auth", "%w", err)
	}
	if _, err := certs.ParseVersion(t.MinVersion); err != nil {
		bad("tls-min-version", "%w", err)
	}
	switch {
	case t.Cert != "" && t.Key == "":
		bad("tls-key", "missing beside --tls-cert")
	case t.Cert == "" && t.Key != "":
		bad("tls-cert", "missing beside --tls-key")
	case t.Cert == "" && t.ClientCA != "":
		bad("tls-client-ca", "only with --tls-cert and --tls-key: clients show certificates to a server that has one")
	case t.Cert == "" && auth != certs.NoClient:
		bad("tls-client-auth", "only with --tls-cert and --tls-key: clients show certificates to a server that has one")
	case auth != certs.NoClient && t.ClientCA == "":
		bad("tls-client-ca", "missing beside --tls-client-auth=%s", t.ClientAuth)
	case err == nil && auth == certs.NoClient && t.ClientCA != "":
		bad("tls-client-auth", "give request or require: with none, nobody is checked against --tls-client-ca")
	}
	given := []struct{ flag, value string }{{"peer-tls-cert", t.PeerCert}, {"peer-tls-key", t.PeerKey}, {"peer-tls-ca", t.PeerCA}}
	if t.PeerCert != "" || t.PeerKey != "" || t.PeerCA != "" {
		for _, g := range given {
			if g.value == "" {
				bad(g.flag, "missing: --peer-tls-cert, --peer-tls-key and --peer-tls-ca go together")
			}
		}
	}
	switch mode := t.peerMode(); {
	case mode != peerOff && mode != peerAccept && mode != peerRequire:
		bad("peer-tls", "%q is none of off, accept, require", mode)
	case mode != peerOff && t.PeerCert == "":
		bad("peer-tls-cert", "missing beside --peer-tls=%s", mode)
	}
	if t.PeerName == "" {
		bad("peer-tls-name", "is empty")
	}
	return errors.Join(errs...)
}

// expect is with how many nodes this one founds a cluster; 0: it only joins one.
func (c *Config) expect() int {
	if len(c.BootstrapNames) > 0 && !slices.Contains(c.BootstrapNames, c.Name) {
		return 0
	}
	if c.BootstrapExpect == 0 && len(c.Join) == 0 {
		return 1 // on loopback, see validateExpect
	}
	return c.BootstrapExpect
}

// topKeys are the values of --top-keys.
var topKeys = map[string]limiter.TopKeys{"off": limiter.TopOff, "local": limiter.TopLocal, "on": limiter.TopOn}

// whenFull are the values of --when-full.
var whenFull = map[string]bucket.WhenFull{"evict": bucket.EvictOld, "deny": bucket.DenyNew}

func (c *Config) listenAddr(port uint16) string {
	return net.JoinHostPort(c.Bind, strconv.Itoa(int(port)))
}

// joinTargets are --join with a port each: other nodes are taken to gossip at the port that this one does.
func (c *Config) joinTargets() []string {
	targets := slices.Clone(c.Join)
	for i, j := range targets {
		if _, _, err := net.SplitHostPort(j); err != nil && c.GossipPort != 0 {
			targets[i] = net.JoinHostPort(strings.Trim(j, "[]"), strconv.Itoa(int(c.GossipPort)))
		}
	}
	return targets
}
