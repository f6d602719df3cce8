package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/sluicecluster/sluice/internal/member"
)

// DefaultPort is the gossip port, TCP and UDP, where none is given.
const DefaultPort = 7463

// Longest Name and Zone, in bytes.
const (
	MaxName = 128
	MaxZone = 63
)

// With these times all survivors see a crash within 5 s and an announced change within a second.
const (
	// forgetAfter is how long a lost member's address is tried.
	forgetAfter = 24 * time.Hour
	// A node sends a probe every probeInterval and waits for a direct answer for probeTimeout. A silent member may object for
	// suspicionMult times probeInterval (from 10 members on, log10 of their number multiplies it).
	probeInterval = 400 * time.Millisecond
	probeTimeout  = 200 * time.Millisecond
	suspicionMult = 4
	// gossipInterval is the time between two gossip messages.
	gossipInterval = 100 * time.Millisecond
	// pushPullInterval is the time between two full exchanges of state with a random member. They replace messages that got
	// lost, for example when all nodes start at once. It grows from 32 members on.
	pushPullInterval = 2 * time.Second
	// deadTime is how long a dead member still gets messages, so that it can object.
	deadTime = 15 * time.Second
)

// Resolver looks up the addresses of a name. *net.Resolver is one.
type Resolver interface {
	// LookupNetIP returns the addresses of host; network is "ip".
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config describes this node and how it finds others.
type Config struct {
	// Name is the logical name, for example the pod's: unique in the cluster, the same after a restart, 1 to MaxName bytes of
	// letters, digits, '.', '_', '-'.
	Name string
	// Boot names this run of the process. Empty means NewBoot of now.
	Boot string

	// Bind is where to listen for gossip, TCP and UDP: host or host:port. An empty host means all addresses, port 0 any free
	// port.
	Bind string
	// Advertise is where others reach this node's gossip: host or host:port. Empty means the address bound to, or for all
	// addresses a private one of the machine.
	Advertise string
	// Peer, GRPC and HTTP are announced to the others, host:port. An empty host, 0.0.0.0 or :: is replaced with the advertised
	// host. Empty means not offered.
	Peer, GRPC, HTTP string

	// Join are gossip addresses of other nodes: host, host:port, IPv6 with or without brackets, or DNS names, which are resolved
	// again at every attempt. They may include this node. Without any, this node serves alone until others join it.
	Join []string

	// Keyring encrypts gossip. Without keys it is not encrypted. Two nodes communicate only if each has the other's primary
	// key, or neither has keys.
	Keyring Keyring
	// Placement is ring.Placement. Peers with another number are rejected.
	Placement int
	// Zone is announced to the others, for example a zone of a cloud: at most MaxZone bytes of the characters of a Name. Empty
	// means unknown.
	Zone string
	// Region is the name of the region that this cluster is. Peers that announce another one are rejected. Empty means not said.
	Region string
	// Version is the program's version, announced to the others.
	Version string

	// JoinTimeout is how long a node with join targets waits for the first answer before it serves without. 0 means 5 s.
	JoinTimeout time.Duration
	// RejoinInterval is the least time between attempts to reach join targets and lost members; up to as much again is added
	// at random. 0 means 1 s.
	RejoinInterval time.Duration
	// DialTimeout bounds connecting to a peer, and each exchange with it. 0 means 2 s.
	DialTimeout time.Duration

	// Logger defaults to slog.Default. memberlist's lines appear at debug.
	Logger *slog.Logger
	// Resolver defaults to net.DefaultResolver.
	Resolver Resolver
	// Transport replaces the sockets in tests; Bind is then ignored. Open takes it over and shuts it down.
	Transport memberlist.Transport
}

func (c Config) withDefaults() Config {
	c.Boot = cmp.Or(c.Boot, randomBoot())
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	c.JoinTimeout = cmp.Or(c.JoinTimeout, 5*time.Second)
	c.RejoinInterval = cmp.Or(c.RejoinInterval, time.Second)
	c.DialTimeout = cmp.Or(c.DialTimeout, 2*time.Second)
	return c
}

// Validate reports every invalid field, after the defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("gossip: %s: %w", field, fmt.Errorf(format, args...)))
	}
	if err := ValidateName(c.Name); err != nil {
		bad("Name", "%w", err)
	}
	if !validBoot(c.Boot) {
		bad("Boot", "%q is not of the form that NewBoot makes", c.Boot)
	}
	type address struct {
		field, value string
		defaultPort  uint16
		allow        int
	}
	addresses := []address{
		{"Bind", c.Bind, DefaultPort, anyHost | anyPort}, {"Advertise", c.Advertise, 0, anyPort},
		{"Peer", c.Peer, 0, anyHost}, {"GRPC", c.GRPC, 0, anyHost}, {"HTTP", c.HTTP, 0, anyHost},
	}
	addresses = slices.DeleteFunc(addresses, func(a address) bool { return a.value == "" }) // all optional, unlike those of Join
	for i, j := range c.Join {
		addresses = append(addresses, address{fmt.Sprintf("Join[%d]", i), j, DefaultPort, 0})
	}
	for _, a := range addresses {
		if _, err := parseHostPort(a.value, a.defaultPort, a.allow); err != nil {
			bad(a.field, "%w", err)
		}
	}
	if c.Placement < 1 || int64(c.Placement) > int64(^uint32(0)) {
		bad("Placement", "%d: want a number from 1", c.Placement)
	}
	if err := ValidateZone(c.Zone); err != nil {
		bad("Zone", "%w", err)
	}
	if len(c.Version) > 64 {
		bad("Version", "%d bytes long: want at most 64", len(c.Version))
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"JoinTimeout", c.JoinTimeout}, {"RejoinInterval", c.RejoinInterval}, {"DialTimeout", c.DialTimeout}} {
		if d.value < 0 {
			bad(d.field, "%v: want a positive duration, or 0 for the default", d.value)
		}
	}
	return errors.Join(errs...)
}

// ValidateName returns why a node's name is invalid, or nil.
func ValidateName(name string) error {
	if name == "" {
		return errors.New("is empty: every node needs a name of its own, for example the host's")
	}
	return validText(name, MaxName)
}

// ValidateZone returns why the name of a zone is invalid, or nil. It may be empty.
func ValidateZone(zone string) error { return validText(zone, MaxZone) }

func validText(s string, most int) error {
	if len(s) > most {
		return fmt.Errorf("%d bytes long: want at most %d", len(s), most)
	}
	for _, r := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", r) {
			return fmt.Errorf("%q contains %q: want letters, digits, '.', '_' and '-'", s, r)
		}
	}
	return nil
}

// self is this node as it starts at the endpoint.
func (c Config) self(end endpoint) member.Member {
	host := end.address.Addr().String()
	return member.Member{
		Name: c.Name, Boot: c.Boot, State: member.Joining, Version: c.Version, Zone: c.Zone,
		Gossip: end.address.String(),
		Peer:   completeHost(c.Peer, host),
		GRPC:   completeHost(c.GRPC, host),
		HTTP:   completeHost(c.HTTP, host),
	}
}

// memberlist translates c for the library.
func (c Config) memberlist(g *Gossip, end endpoint) *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name = fullName(c.Name, c.Boot)
	m.Transport = end.transport
	m.BindPort = int(end.address.Port())
	m.AdvertiseAddr = end.address.Addr().String()
	m.AdvertisePort = int(end.address.Port())
	m.LogOutput = nil
	m.Logger = log.New(g.library, "", 0)
	m.EnableCompression = false // the messages are small
	if g.keys != nil {
		m.Keyring = g.keys.list
	}
	m.TCPTimeout = c.DialTimeout
	m.ProbeInterval = probeInterval
	m.ProbeTimeout = probeTimeout
	m.SuspicionMult = suspicionMult
	m.GossipInterval = gossipInterval
	m.PushPullInterval = pushPullInterval
	m.GossipToTheDeadTime = deadTime
	// Both stretch detection when confirmations or answers are missing, which suits hundreds of nodes. With memberlist's 6 and
	// 8, a node isolated from a small cluster notices that after half a minute; with 2, within 5 s.
	m.SuspicionMaxTimeoutMult = 2
	m.AwarenessMaxMultiplier = 2
	d := delegate{g}
	m.Delegate, m.Events, m.Alive, m.Merge = d, d, d, d
	return m
}
