package system

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"debug/buildinfo"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/sluicecluster/sluice/bench/process"
	"github.com/sluicecluster/sluice/internal/load/api"
)

// Spec is a system to start.
type Spec struct {
	System string   // echo, sluice, gubernator, ratelimit or redis
	Name   string   // in tables; empty: made of the rest
	Nodes  int      // ratelimit and redis have one; those of the echo are independent
	Keys   int      // the capacity of the caches of sluice and gubernator; 0: sluice's default
	TLS    bool     // the echo or one node of sluice, over TLS 1.3
	Flags  []string // further flags of sluice's nodes
}

// ErrNoRedis means that redis-server, which redis and ratelimit need, is not installed.
var ErrNoRedis = errors.New("redis-server is not installed")

// Start starts a system and waits until its nodes decide checks, and agree with each other.
func (b *Binaries) Start(ctx context.Context, spec Spec) (*System, error) {
	s := &System{Name: spec.Name, api: "grpc", config: api.Config{Key: "user"}, targets: map[way]target{}}
	if s.Name == "" {
		s.Name = spec.name()
	}
	if err := s.launch(ctx, b, &spec); err != nil {
		s.Stop()
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return s, nil
}

// name is the default name of a system.
func (s *Spec) name() string {
	name := s.System
	switch {
	case s.System == "ratelimit":
		name += "+redis"
	case s.System == "redis":
	case s.Nodes > 1 || s.System != "echo":
		name += fmt.Sprintf(" ×%d", s.Nodes)
	}
	if s.TLS {
		name += ", TLS"
	}
	return name
}

func (s *System) launch(ctx context.Context, b *Binaries, spec *Spec) (err error) {
	var cert, key string
	if spec.TLS {
		if cert, key, err = s.secure(ctx, b); err != nil {
			return err
		}
	}
	switch spec.System {
	case "echo":
		err = s.startEcho(b, spec, cert, key)
	case "sluice":
		if spec.TLS {
			spec.Flags = append(spec.Flags, "--tls-cert", cert, "--tls-key", key)
		}
		err = s.startSluice(b, spec)
	case "gubernator":
		err = s.startGubernator(b, spec)
	case "ratelimit":
		err = s.startRateLimit(ctx, b)
	case "redis":
		if s.config.Addrs, err = addrs(1); err == nil {
			s.api = RedisRate
			err = s.startRedis(ctx, b, s.config.Addrs[0])
		}
	default:
		err = fmt.Errorf("%q is none of echo, sluice, gubernator, ratelimit, redis", spec.System)
	}
	if err != nil {
		return err
	}
	return s.ready(ctx)
}

// secure makes a certificate for a node by `sluice cert`, which the connections of s trust.
func (s *System) secure(ctx context.Context, b *Binaries) (cert, key string, err error) {
	dir, err := os.MkdirTemp(b.scratch, "certs-")
	if err != nil {
		return "", "", err
	}
	made := exec.CommandContext(ctx, b.sluice, "cert", "--dir", dir, "--names", nodeName(0))
	if text, err := made.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("making certificates: %w\n%s", err, text)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return "", "", err
	}
	s.config.TLS = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "sluice", MinVersion: tls.VersionTLS13}
	s.config.TLS.RootCAs.AppendCertsFromPEM(ca)
	node := filepath.Join(dir, nodeName(0))
	return node + ".crt", node + ".key", nil
}

func (s *System) startEcho(b *Binaries, spec *Spec, cert, key string) (err error) {
	if s.config.Addrs, err = addrs(spec.Nodes); err != nil {
		return err
	}
	for _, addr := range s.config.Addrs {
		if err := s.start(process.Spec{Name: "echo", Path: b.peer("echo"), Args: []string{"-addr", addr, "-cert", cert, "-key", key}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *System) startSluice(b *Binaries, spec *Spec) error {
	// For each node: gRPC, HTTP, peer, gossip.
	at, err := addrs(4 * spec.Nodes)
	if err != nil {
		return err
	}
	var join []string
	for i := range spec.Nodes {
		s.config.Addrs, s.HTTP = append(s.config.Addrs, at[4*i]), append(s.HTTP, at[4*i+1])
		if spec.Nodes > 1 {
			join = append(join, at[4*i+3])
		}
	}
	s.Flags = append(room(spec.Keys), spec.Flags...)
	for i := range spec.Nodes {
		if err := s.start(b.node(nodeName(i), at[4*i:4*i+4], join, s.Flags...)); err != nil {
			return err
		}
	}
	return nil
}

// node returns the process of a node of sluice with its four addresses (gRPC, HTTP, peer, gossip).
func (b *Binaries) node(name string, at, join []string, flags ...string) process.Spec {
	args := []string{"serve", "--name", name, "--bind", host, "--rules", b.Rules}
	for i, flag := range []string{"--grpc-port", "--http-port", "--peer-port", "--gossip-port"} {
		args = append(args, flag, port(at[i]))
	}
	if len(join) > 0 {
		args = append(args, "--join", strings.Join(join, ","), "--bootstrap-expect", strconv.Itoa(len(join)))
	}
	return process.Spec{Name: name, Path: b.sluice, Args: append(args, flags...)}
}

func nodeName(i int) string { return "n" + strconv.Itoa(i+1) }

// capacity is the size of a cache for keys: nodes do not own equally many.
func capacity(keys int) int { return keys + keys/5 + 1000 }

// room returns the flags of a node of sluice for so many keys, as docs/operate/sizing.md has them; none for 0.
func room(keys int) []string {
	if keys == 0 {
		return nil
	}
	return []string{"--memory-limit", fmt.Sprintf("%dMB", capacity(keys)*120/1_000_000+100)}
}

func (s *System) startGubernator(b *Binaries, spec *Spec) error {
	at, err := addrs(2 * spec.Nodes)
	if err != nil {
		return err
	}
	s.api, s.config.Addrs = "gubernator", at[:spec.Nodes]
	s.Flags = []string{"-cache", strconv.Itoa(capacity(cmp.Or(spec.Keys, defaultKeys)))}
	for i, a := range s.config.Addrs {
		if err := s.start(process.Spec{Name: fmt.Sprintf("gubernator-%d", i+1), Path: b.peer("gubernator"), Args: append([]string{
			"-addr", a, "-http", at[spec.Nodes+i], "-peers", strings.Join(s.config.Addrs, ","),
		}, s.Flags...)}); err != nil {
			return err
		}
	}
	return nil
}

// defaultKeys is the capacity of gubernator's cache without Spec.Keys.
const defaultKeys = 200_000

// startRateLimit starts one envoyproxy/ratelimit and its Redis.
func (s *System) startRateLimit(ctx context.Context, b *Binaries) error {
	// Redis, gRPC, HTTP, debug.
	at, err := addrs(4)
	if err != nil {
		return err
	}
	if err := s.startRedis(ctx, b, at[0]); err != nil {
		return err
	}
	root, err := b.rateLimitRules()
	if err != nil {
		return err
	}
	s.api, s.config.Addrs = "envoy", at[1:2]
	return s.start(process.Spec{Name: "ratelimit", Path: b.peer("ratelimit"), Env: []string{
		"GRPC_HOST=" + host, "GRPC_PORT=" + port(at[1]), "HOST=" + host, "PORT=" + port(at[2]),
		"DEBUG_HOST=" + host, "DEBUG_PORT=" + port(at[3]),
		"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + at[0], "DISABLE_STATS=true", "LOG_LEVEL=ERROR",
	}})
}

// rateLimitRules writes the two domains in its format and returns the folder to start in.
func (b *Binaries) rateLimitRules() (string, error) {
	root := filepath.Join(b.scratch, "ratelimit")
	config := filepath.Join(root, "config")
	if err := os.MkdirAll(config, 0o755); err != nil {
		return "", err
	}
	for domain, count := range map[string]string{"allowed": "1000000000", "denied": "1"} {
		text := "domain: " + domain + "\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: " + count + "}\n"
		if err := os.WriteFile(filepath.Join(config, domain+".yaml"), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return root, nil
}

// port is the port of an address that addrs returned.
func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

const host = "127.0.0.1"

// ports allocates ports below those of outgoing connections, so that none is in use when its server starts.
var ports = struct {
	sync.Mutex
	next int
}{next: 20_000}

const lastPort = 32_000

// addrs returns n addresses whose TCP and UDP ports are free.
func addrs(n int) ([]string, error) {
	ports.Lock()
	defer ports.Unlock()
	var list []string
	for len(list) < n {
		if ports.next > lastPort {
			return nil, fmt.Errorf("no port left up to %d", lastPort)
		}
		a := fmt.Sprintf("%s:%d", host, ports.next)
		ports.next++
		if free(a) {
			list = append(list, a)
		}
	}
	return list, nil
}

func free(addr string) bool {
	t, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer t.Close()
	u, err := net.ListenPacket("udp", addr)
	return err == nil && u.Close() == nil
}

// Binaries are the programs to start.
type Binaries struct {
	Revision string // the commit of sluice, with a + if files had changed
	Rules    string // the folder of this module's rule files

	sluice string
	peers  string // the folder of the other programs
	// scratch is the folder of the servers' files.
	scratch string
}

//go:embed rules
var rules embed.FS

// Build compiles the peers into dir, from the module in the working directory; sluice is the path of an existing binary.
func Build(ctx context.Context, sluice, dir string) (*Binaries, error) {
	info, err := buildinfo.ReadFile(sluice)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make build makes it", sluice, err)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	b := &Binaries{sluice: sluice, Revision: revision(info), Rules: filepath.Join(scratch, "rules"), peers: dir, scratch: scratch}
	if err := os.CopyFS(scratch, rules); err != nil {
		return nil, err
	}
	for _, module := range []string{"echo", "peers/gubernator", "peers/ratelimit"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", b.peer(filepath.Base(module)), ".")
		cmd.Dir = module
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w\n%s", module, err, text)
		}
	}
	return b, nil
}

// peer is the path of another program.
func (b *Binaries) peer(name string) string { return filepath.Join(b.peers, name) }

// Close removes the files that servers read and wrote.
func (b *Binaries) Close() error { return os.RemoveAll(b.scratch) }

func revision(info *buildinfo.BuildInfo) (r string) {
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			r = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if r == "" {
		return "unknown"
	}
	return r + changed
}
