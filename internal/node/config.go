package node

import (
	"cmp"
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

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/gossip"
	"github.com/sluicecluster/sluice/internal/certs"
	"github.com/sluicecluster/sluice/internal/regions"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/deadline"
)

// Config has the settings of a node. The help of the flags of `sluice serve` describes the fields and their defaults; errors
// name these flags.
type Config struct {
	Name, Bind, Advertise, Zone string

	// Region is the name of the region that this cluster is, Regions are the items of --regions.
	Region  string
	Regions []string
	// RegionsFile has them instead, see regions.Items. It is followed.
	RegionsFile string
	// RegionWeights are the items of --region-weights.
	RegionWeights []string

	Join            []string
	BootstrapExpect int // 0 if not given, see expect
	BootstrapNames  []string

	GRPCPort, HTTPPort, PeerPort, GossipPort uint16
	// MetricsAddr has probes and metrics in plain HTTP; empty for none.
	MetricsAddr string
	// GRPCMaxConnectionAge is grpcapi.Config.MaxAge.
	GRPCMaxConnectionAge time.Duration

	Rules, Callers, UnknownDomain, TopKeys string
	MergeDomains, Console                  bool

	SecretFile, GossipKeyring string
	Secret                    []byte // instead of SecretFile, for nodes of one process
	Insecure                  []string
	TLS                       TLS

	EnvoyAllOrNothing, EnvoyResponseHeaders, EnvoyDynamicMetadata bool

	CheckTimeout, JoinTimeout, ShutdownTimeout, HandoverTimeout time.Duration
	// AssumeDeadline are the items of --assume-deadline.
	AssumeDeadline                                         []string
	ForgetAfter, LostStateHold, MaxClockSkew, SettleWindow time.Duration
	QuorumTimeout                                          time.Duration // cluster.Config.QuorumTimeout, no flag
	Clock                                                  func() int64  // cluster.Config.Clock, no flag
	Rejoin                                                 time.Duration // gossip.Config.RejoinInterval, no flag
	Replicas                                               int

	MaxEntries        int
	WhenFull, DataDir string
	SnapshotInterval  time.Duration

	Admin  Admin
	Bounds Bounds
	Traces Traces

	// LostLogLines counts the log lines that could not be written. May be nil.
	LostLogLines func() uint64
	// Version is the program's, for metrics and other nodes.
	Version string
	// OwnProcess: the node is alone in its process, and tunes its memory limit and garbage collector.
	OwnProcess bool
}

// TLS has settings of certificates. Cert, Key and CA fields name files.
type TLS struct {
	Cert, Key, ClientCA, ClientAuth, MinVersion string

	PeerCert, PeerKey, PeerCA, PeerName string
	// Peers is --peer-tls; see peerMode.
	Peers string
}

// Admin has the operators' ways to a node: a socket in Dir, and the admin port at Addr with a token in Dir.
type Admin struct {
	Dir      string
	Addr     string
	Anywhere bool
	// Hosts are the names by which pages of this node may call it, see httpapi.OwnPages.
	Hosts []string
	// Level is the log level that PUT /loglevel changes; nil for no such call.
	Level *slog.LevelVar
}

// Bounds limit the load of clients. docs/operate/limits.md has the fixed bounds.
type Bounds struct {
	MaxConnections, MaxPerAddress int
	MaxCalls                      int
	MaxWait                       time.Duration
	// MaxInlineEntries is limiter.Config.InlineEntries.
	MaxInlineEntries int
	MemoryLimit      string

	// maxOwn is the most connections to the peer and the admin port, and four times those to the metrics port; 0 means MaxConnections.
	maxOwn int
}

// Traces says which calls are traced, and where spans go.
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

// problems are errors of flags.
type problems []error

// add adds an error of a flag, whose name has no dashes.
func (p *problems) add(flag, format string, args ...any) {
	*p = append(*p, fmt.Errorf("--%s: %w", flag, fmt.Errorf(format, args...)))
}

// Validate checks the values of flags and fills defaults that depend on the host. It does not read files.
func (c *Config) Validate() error {
	var p problems
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			p.add("name", "not given, and the host has none: %w", err)
		}
		c.Name = host
	}
	if err := gossip.ValidateName(c.Name); err != nil {
		p.add("name", "%w", err)
	}
	if net.ParseIP(c.Bind) == nil {
		p.add("bind", "%q is not an IP address such as 127.0.0.1, or 0.0.0.0 for all", c.Bind)
	}
	if c.Advertise != "" && net.ParseIP(c.Advertise) == nil {
		p.add("advertise", "%q is not an IP address", c.Advertise)
	}
	c.validateExpect(&p)
	c.validateSecret(&p)
	c.validateRegions(&p)
	c.Bounds.validate(&p)
	c.Admin.validate(&p)
	c.Traces.validate(&p)
	c.TLS.validate(&p)
	if strings.Contains(c.TLS.PeerName, "{region}") && c.Region == "" {
		p.add("peer-tls-name", "has {region}, and --region is not given")
	}
	if c.UnknownDomain != "allow" && c.UnknownDomain != "error" {
		p.add("unknown-domain", "%q is neither allow nor error", c.UnknownDomain)
	}
	if _, ok := topKeys[c.TopKeys]; !ok {
		p.add("top-keys", "%q is none of off, local, on", c.TopKeys)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"check-timeout", c.CheckTimeout}, {"join-timeout", c.JoinTimeout}, {"shutdown-timeout", c.ShutdownTimeout},
		{"handover-timeout", c.HandoverTimeout}, {"forget-after", c.ForgetAfter}, {"max-clock-skew", c.MaxClockSkew},
	} {
		if d.value <= 0 {
			p.add(d.flag, "%v is not above 0", d.value)
		}
	}
	if _, err := deadline.ParseAssumed(c.AssumeDeadline); err != nil {
		p.add("assume-deadline", "%w", err)
	}
	if c.MetricsAddr != "" {
		if _, _, err := net.SplitHostPort(c.MetricsAddr); err != nil {
			p.add("metrics-addr", "%w; want host:port, or :port for all addresses", err)
		}
	}
	if age := c.GRPCMaxConnectionAge; age != 0 && age < time.Second {
		p.add("grpc-max-connection-age", "%v; want 1s or more, or 0 for no bound", age)
	}
	if c.SnapshotInterval < 0 {
		p.add("snapshot-interval", "%v is below 0", c.SnapshotInterval)
	}
	if c.LostStateHold < 0 {
		p.add("lost-state-hold", "%v is below 0; give a time, or 0 for no bound", c.LostStateHold)
	}
	if c.SettleWindow < 0 || c.SettleWindow > bucket.MaxSettleWindow {
		p.add("settle-window", "%v; want up to %v, or 0 for the longest max_ttl of the rules", c.SettleWindow, bucket.MaxSettleWindow)
	}
	if c.Replicas < 1 || c.Replicas > 2 {
		p.add("replicas", "%d is neither 1 nor 2", c.Replicas)
	}
	if err := gossip.ValidateZone(c.Zone); err != nil {
		p.add("zone", "%w", err)
	}
	if c.MaxEntries < 0 {
		p.add("max-entries", "%d is below 0", c.MaxEntries)
	}
	if _, ok := whenFull[c.WhenFull]; !ok {
		p.add("when-full", "%q is neither evict nor deny", c.WhenFull)
	}
	_, err := c.counterBytes()
	return errors.Join(append(p, err)...)
}

// assumed are the deadlines of callers that send none. AssumeDeadline must be valid.
func (c *Config) assumed() deadline.Assumed {
	a, _ := deadline.ParseAssumed(c.AssumeDeadline)
	return a
}

// insecureWords are the words of --insecure. Each lifts one check.
var insecureWords = []string{"secret", "region-tls"}

// validateSecret requires a secret if other machines reach this node.
func (c *Config) validateSecret(p *problems) {
	for _, word := range c.Insecure {
		if !slices.Contains(insecureWords, word) {
			p.add("insecure", "%q is none of %s", word, strings.Join(insecureWords, ", "))
			return
		}
	}
	ip := net.ParseIP(c.Bind)
	if ip == nil || c.loopback() || c.Secret != nil || c.SecretFile != "" || slices.Contains(c.Insecure, "secret") {
		return
	}
	p.add("secret-file", "not given, and --bind %s is reached from other machines, any of which could join the cluster: make a secret for all nodes "+
		"(head -c 32 /dev/urandom | base64 > secret), or do without by --insecure=secret", c.Bind)
}

// loopback reports whether no other machine reaches the ports.
func (c *Config) loopback() bool {
	ip := net.ParseIP(c.Bind)
	return ip != nil && ip.IsLoopback()
}

// insecurities are the protections that the node runs without although other machines reach its ports, a sentence each.
func (c *Config) insecurities() (list []string) {
	if c.Admin.Anywhere && c.Admin.Addr != "" {
		list = append(list, "--admin-anywhere: the operators' token is sent to "+c.Admin.Addr+" without TLS")
	}
	if !c.loopback() && c.Secret == nil && c.SecretFile == "" {
		list = append(list, "--insecure=secret: any process that reaches the ports can join the cluster")
	}
	if c.plainRegions() {
		list = append(list, "--insecure=region-tls: checks and the proofs of the secret cross the network to other regions without TLS")
	}
	if !c.loopback() && c.Callers == "" {
		list = append(list, "no --callers: every client that reaches the ports of "+c.Bind+" may check and reset any key")
	}
	return list
}

// validateRegions checks the list of regions, and requires TLS where other machines are in it.
func (c *Config) validateRegions(p *problems) {
	switch {
	case c.Region == "" && !c.hasRegions():
		if len(c.RegionWeights) > 0 {
			p.add("region-weights", "given without --region and --regions")
		}
		return
	case c.RegionsFile != "" && len(c.Regions) > 0:
		p.add("regions-file", "given beside --regions: give one of them")
		return
	case c.Region == "":
		p.add("region", "missing beside --regions: which of them this cluster is")
		return
	case !c.hasRegions():
		p.add("regions", "missing beside --region=%s: the other regions, as us=us.example:7462,ap=ap.example", c.Region)
	default:
		flag := "regions"
		if c.RegionsFile != "" {
			flag = "regions-file"
		}
		list, err := c.regions()
		if err != nil {
			p.add(flag, "%w", err)
		} else if _, err := list.WithWeights(c.RegionWeights); err != nil {
			p.add("region-weights", "%w", err)
		}
		if err == nil {
			if err = c.checkPlainRegions(); err != nil {
				p.add("peer-tls", "%w", err)
			}
		}
	}
	if err := regions.ValidateName(c.Region); err != nil {
		p.add("region", "%w", err)
	}
}

func (c *Config) hasRegions() bool { return len(c.Regions) > 0 || c.RegionsFile != "" }

// checkPlainRegions rejects connections to regions without TLS, unless --insecure allows them.
func (c *Config) checkPlainRegions() error {
	if c.plainRegions() && !slices.Contains(c.Insecure, "region-tls") {
		return errors.New("is not require, and connections to other regions cross networks: give --peer-tls-cert, --peer-tls-key and --peer-tls-ca, " +
			"or do without by --insecure=region-tls")
	}
	return nil
}

// regions parses --regions, or else the file. Addresses without a port have this node's peer port.
func (c *Config) regions() (*regions.List, error) {
	items := c.Regions
	if len(items) == 0 && c.RegionsFile != "" {
		text, err := os.ReadFile(c.RegionsFile)
		if err != nil {
			return nil, err
		}
		items = regions.Items(text)
	}
	return regions.Parse(c.Region, items, cmp.Or(c.PeerPort, Defaults().PeerPort))
}

// plainRegions reports whether there may be connections without TLS to regions on other machines.
func (c *Config) plainRegions() bool {
	if !c.hasRegions() || c.TLS.peerMode() == peerRequire {
		return false
	}
	list, err := c.regions()
	return err == nil && !(c.loopback() && list.Loopback())
}

func (c *Config) validateExpect(p *problems) {
	names := strings.Join(c.BootstrapNames, ", ")
	switch ip := net.ParseIP(c.Bind); {
	case c.BootstrapExpect < 0:
		p.add("bootstrap-expect", "%d is below 0", c.BootstrapExpect)
	case names != "" && c.BootstrapExpect > len(c.BootstrapNames):
		p.add("bootstrap-expect", "%d nodes are more than --bootstrap-names has, which are %s", c.BootstrapExpect, names)
	case names != "" && 2*c.BootstrapExpect <= len(c.BootstrapNames):
		p.add("bootstrap-expect", "%d is not more than half of --bootstrap-names, which are %s: they could found two clusters", c.BootstrapExpect, names)
	case c.BootstrapExpect == 0 && len(c.Join) == 0 && ip != nil && !ip.IsLoopback():
		p.add("bootstrap-expect", "not given, nor --join, and --bind %s is reached from other machines: say with how many nodes a cluster is "+
			"founded, more than half of those that start (1 for a node that stays alone), or name the nodes to join with --join", c.Bind)
	}
}

func (b *Bounds) validate(p *problems) {
	for _, one := range []struct {
		flag  string
		value int
	}{{"max-connections", b.MaxConnections}, {"max-connections-per-address", b.MaxPerAddress}, {"max-calls", b.MaxCalls}} {
		if one.value < 1 {
			p.add(one.flag, "%d is below 1", one.value)
		}
	}
	if b.MaxInlineEntries < 1 || b.MaxInlineEntries > bucket.MaxKeyEntries {
		p.add("max-inline-log-entries", "%d; want 1 to %d", b.MaxInlineEntries, bucket.MaxKeyEntries)
	}
	if b.MaxWait < 0 {
		p.add("max-wait", "%v is below 0", b.MaxWait)
	}
}

func (a *Admin) validate(p *problems) {
	if a.Addr == "" {
		return
	}
	host, _, err := net.SplitHostPort(a.Addr)
	if err != nil {
		p.add("admin-addr", "%w", err)
		return
	}
	// A name may become another address, so of names only localhost is certain to be this machine.
	if ip, err := netip.ParseAddr(host); !a.Anywhere && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		p.add("admin-addr", "%s is no loopback address; any machine that reads the token on its way operates this node. "+
			"If that is meant, add --admin-anywhere", a.Addr)
	}
}

func (t *Traces) validate(p *problems) {
	if t.Endpoint != "" {
		u, err := url.Parse(t.Endpoint)
		switch {
		case err != nil:
			p.add("otlp-endpoint", "not a URL such as http://127.0.0.1:4317")
		case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			p.add("otlp-endpoint", "want http://host:port, or https://host:port for TLS")
		case u.User != nil:
			p.add("otlp-endpoint", "holds a password; give it in OTEL_EXPORTER_OTLP_HEADERS")
		}
	}
	if !(t.Share >= 0 && t.Share <= 1) {
		p.add("trace-sample", "%v is not between 0 and 1", t.Share)
	}
	if t.Callers < 0 {
		p.add("trace-callers", "%d is below 0", t.Callers)
	}
}

func (t *TLS) validate(p *problems) {
	auth, err := certs.ParseClientAuth(t.ClientAuth)
	if err != nil {
		p.add("tls-client-auth", "%w", err)
	}
	if _, err := certs.ParseVersion(t.MinVersion); err != nil {
		p.add("tls-min-version", "%w", err)
	}
	switch {
	case t.Cert != "" && t.Key == "":
		p.add("tls-key", "missing beside --tls-cert")
	case t.Cert == "" && t.Key != "":
		p.add("tls-cert", "missing beside --tls-key")
	case t.Cert == "" && t.ClientCA != "":
		p.add("tls-client-ca", "only with --tls-cert and --tls-key: clients send certificates to a server that has one")
	case t.Cert == "" && auth != certs.NoClient:
		p.add("tls-client-auth", "only with --tls-cert and --tls-key: clients send certificates to a server that has one")
	case auth != certs.NoClient && t.ClientCA == "":
		p.add("tls-client-ca", "missing beside --tls-client-auth=%s", t.ClientAuth)
	case err == nil && auth == certs.NoClient && t.ClientCA != "":
		p.add("tls-client-auth", "give request or require: with none, no client is checked against --tls-client-ca")
	}
	if t.PeerCert != "" || t.PeerKey != "" || t.PeerCA != "" {
		for _, g := range []struct{ flag, value string }{{"peer-tls-cert", t.PeerCert}, {"peer-tls-key", t.PeerKey}, {"peer-tls-ca", t.PeerCA}} {
			if g.value == "" {
				p.add(g.flag, "missing: --peer-tls-cert, --peer-tls-key and --peer-tls-ca go together")
			}
		}
	}
	switch mode := t.peerMode(); {
	case mode != peerOff && mode != peerAccept && mode != peerRequire:
		p.add("peer-tls", "%q is none of off, accept, require", mode)
	case mode != peerOff && t.PeerCert == "":
		p.add("peer-tls-cert", "missing beside --peer-tls=%s", mode)
	}
	if t.PeerName == "" {
		p.add("peer-tls-name", "is empty")
	}
}

// expect is the number of nodes with which this one founds a cluster; 0: it only joins one.
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

// joinTargets are --join with a port each, by default this node's gossip port.
func (c *Config) joinTargets() []string {
	targets := slices.Clone(c.Join)
	for i, j := range targets {
		if _, _, err := net.SplitHostPort(j); err != nil && c.GossipPort != 0 {
			targets[i] = net.JoinHostPort(strings.Trim(j, "[]"), strconv.Itoa(int(c.GossipPort)))
		}
	}
	return targets
}
