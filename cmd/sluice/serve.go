package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/limiter"
)

// lookupEnv is where settings in the environment come from.
var lookupEnv = os.LookupEnv

// settings are what `sluice serve` can be told.
type settings struct {
	name      string
	bind      string
	advertise string
	join      []string
	// bootstrapExpect is --bootstrap-expect, 0 if it was not given; see expect.
	bootstrapExpect int
	bootstrapNames  []string

	grpcPort, httpPort, peerPort, gossipPort uint16

	rules         string
	callers       string
	mergeDomains  bool
	unknownDomain string
	topKeys       string
	console       bool
	insecure      []string
	secretFile    string
	secret        []byte // instead of secretFile, for nodes of one process
	gossipKeyring string
	tls           tlsSettings

	envoyAllOrNothing, envoyResponseHeaders, envoyDynamicMetadata bool

	checkTimeout    time.Duration
	right           time.Duration // cluster.Config.Right, no flag
	rejoin          time.Duration // gossip.Timing.RejoinInterval, no flag
	joinTimeout     time.Duration
	shutdownTimeout time.Duration
	handoverTimeout time.Duration
	forgetAfter     time.Duration
	lostStateHold   time.Duration
	maxClockSkew    time.Duration
	replicas        int
	zone            string
	maxEntries      int
	whenFull        string
	gc              *gcTuner // nil where it is not this node's to tune, as in a process of several

	dataDir          string
	snapshotInterval time.Duration

	logLevel, logFormat string
	admin               adminSettings
	bounds              boundSettings
	trace               traceSettings
}

func (s *settings) register(f *pflag.FlagSet) {
	f.String("config", "", "YAML `file` with settings, keys named as these flags")
	f.StringVar(&s.name, "name", "", "this node's `name`, unique in the cluster and kept over restarts (default: the host's name)")
	f.StringVar(&s.bind, "bind", "127.0.0.1", "`address` to listen on; 0.0.0.0 or :: for all of this machine's, which other machines reach")
	f.StringVar(&s.advertise, "advertise", "", "`address` that other nodes reach this one at (default: --bind, or the host's own address if that is unspecified)")
	f.StringSliceVar(&s.join, "join", nil, "other nodes' `addresses` or DNS names, host or host:gossip-port, comma separated; resolved again at every attempt")
	f.IntVar(&s.bootstrapExpect, "bootstrap-expect", 0, "found a cluster when so many `nodes` without one see each other, all with this flag; more than half of the nodes that start (default: 1 without --join on a loopback address; with --join this node only joins)")
	f.StringSliceVar(&s.bootstrapNames, "bootstrap-names", nil, "the only nodes that take part in founding a cluster, by their `names`, comma separated; others only join (default: all with --bootstrap-expect)")
	f.Uint16Var(&s.grpcPort, "grpc-port", defaultGRPCPort, "gRPC `port`; 0 picks a free one")
	f.Uint16Var(&s.httpPort, "http-port", defaultHTTPPort, "HTTP `port`; 0 picks a free one")
	f.Uint16Var(&s.peerPort, "peer-port", 7462, "`port` for checks forwarded by other nodes; 0 picks a free one")
	f.Uint16Var(&s.gossipPort, "gossip-port", 7463, "gossip `port`, TCP and UDP; 0 picks a free one")
	f.StringVar(&s.rules, "rules", "", "rule file or directory; re-read when it changes")
	f.StringVar(&s.callers, "callers", "", "`file` that says who may do what, re-read when it changes; without it everybody may ask and reset")
	f.BoolVar(&s.mergeDomains, "merge-domains", false, "allow several rule files for one domain")
	f.StringVar(&s.unknownDomain, "unknown-domain", "allow", "answer to a check in a domain without rules: allow or error")
	f.StringVar(&s.secretFile, "secret-file", "", "`file` with the cluster's secret, equal on all nodes; re-read when it changes; required where --bind is no loopback address")
	f.StringSliceVar(&s.insecure, "insecure", nil, "checks to do without, by their `words`, comma separated: secret (start beyond loopback without --secret-file: whoever reaches the ports can join the cluster)")
	f.StringVar(&s.topKeys, "top-keys", "local", "count the heaviest keys by name: off, local (shown to operators and to other nodes) or on (shown to everybody)")
	f.BoolVar(&s.console, "console", true, "serve the console, a page for operators, at /console on the HTTP port; `sluice console` logs a browser in")
	s.tls.register(f)
	f.StringVar(&s.gossipKeyring, "gossip-keyring", "", "`file` with the keys that encrypt gossip, base64, one per line, the first for what is sent; re-read when it changes")
	f.BoolVar(&s.envoyAllOrNothing, "envoy-all-or-nothing", false, "charge all descriptors of a request from Envoy or none, instead of each for itself")
	f.BoolVar(&s.envoyResponseHeaders, "envoy-response-headers", false, "have Envoy tell its clients RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset")
	f.BoolVar(&s.envoyDynamicMetadata, "envoy-dynamic-metadata", false, "hand Envoy's next filters the request's descriptors and the metadata of its rules")
	f.DurationVar(&s.checkTimeout, "check-timeout", 1500*time.Millisecond, "longest time to look for a key's holder before the rule's on_failure answers; others claim a crashed node's keys within 1.2s")
	f.DurationVar(&s.joinTimeout, "join-timeout", 5*time.Second, "how long a starting node waits for a --join target before it takes part in founding a cluster (see --bootstrap-expect)")
	f.DurationVar(&s.shutdownTimeout, "shutdown-timeout", 2*time.Second, "longest time for calls under way to finish when stopping")
	f.DurationVar(&s.handoverTimeout, "handover-timeout", 25*time.Second, "longest time to hand counters over to other nodes when stopping; a second signal cuts it short")
	f.DurationVar(&s.forgetAfter, "forget-after", 10*time.Minute, "how long a node that has crashed counts when a majority is needed; then the others go on without it")
	f.DurationVar(&s.lostStateHold, "lost-state-hold", 0, "longest time that rules with on_lost_state: deny deny what may have been spent of counters that are lost (default: until they are back, or their windows have ended)")
	f.DurationVar(&s.maxClockSkew, "max-clock-skew", 500*time.Millisecond, "how far this node's clock may be off the median of the voters' before new windows follow that")
	f.IntVar(&s.replicas, "replicas", 1, "how many other nodes keep a `replica` of what this node owns: 1, or 2 to survive two lost nodes at once; equal on all nodes")
	f.StringVar(&s.zone, "zone", "", "`name` of the zone that this node runs in; replicas are kept in other zones than the owner's where there are any")
	f.IntVar(&s.maxEntries, "max-entries", 0, "most counters to hold; 0 for as many as --memory-limit has room for")
	f.StringVar(&s.whenFull, "when-full", "evict", "what becomes of a new key when there is no room for its counter: evict makes room, deny denies it and keeps what still counts")
	f.StringVar(&s.dataDir, "data-dir", "", "`directory` to keep counters in over a restart of the whole cluster, one for each node; none by default")
	f.DurationVar(&s.snapshotInterval, "snapshot-interval", 10*time.Second, "how often counters are written to --data-dir; 0 writes them only when stopping")
	s.admin.register(f)
	s.bounds.register(f)
	s.trace.register(f)
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// validate checks what flag parsing cannot and fills defaults that depend on the host.
func (s *settings) validate() error {
	var errs []error
	if s.name == "" {
		host, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("--name: not given, and the host has none: %w", err))
		}
		s.name = host
	}
	if err := gossip.ValidateName(s.name); err != nil {
		errs = append(errs, fmt.Errorf("--name: %w", err))
	}
	if net.ParseIP(s.bind) == nil {
		errs = append(errs, fmt.Errorf("--bind: %q is not an IP address", s.bind))
	}
	if s.advertise != "" && net.ParseIP(s.advertise) == nil {
		errs = append(errs, fmt.Errorf("--advertise: %q is not an IP address", s.advertise))
	}
	errs = append(errs, s.validateExpect(), s.validateSecret())
	if err := s.bounds.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := s.admin.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := s.trace.validate(); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, s.tls.validate()...)
	if s.unknownDomain != "allow" && s.unknownDomain != "error" {
		errs = append(errs, fmt.Errorf("--unknown-domain: %q is neither allow nor error", s.unknownDomain))
	}
	if _, ok := topKeys[s.topKeys]; !ok {
		errs = append(errs, fmt.Errorf("--top-keys: %q is none of off, local, on", s.topKeys))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"check-timeout", s.checkTimeout}, {"join-timeout", s.joinTimeout}, {"shutdown-timeout", s.shutdownTimeout},
		{"handover-timeout", s.handoverTimeout}, {"forget-after", s.forgetAfter}, {"max-clock-skew", s.maxClockSkew},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("--%s: %v is not above 0", d.flag, d.value))
		}
	}
	if s.snapshotInterval < 0 {
		errs = append(errs, fmt.Errorf("--snapshot-interval: %v is below 0", s.snapshotInterval))
	}
	if s.lostStateHold < 0 {
		errs = append(errs, fmt.Errorf("--lost-state-hold: %v is below 0; give a time, or 0 for no bound", s.lostStateHold))
	}
	if s.replicas < 1 || s.replicas > 2 {
		errs = append(errs, fmt.Errorf("--replicas: %d is neither 1 nor 2", s.replicas))
	}
	if err := gossip.ValidateZone(s.zone); err != nil {
		errs = append(errs, fmt.Errorf("--zone: %w", err))
	}
	if s.maxEntries < 0 {
		errs = append(errs, fmt.Errorf("--max-entries: %d is below 0", s.maxEntries))
	}
	if _, ok := whenFull[s.whenFull]; !ok {
		errs = append(errs, fmt.Errorf("--when-full: %q is neither evict nor deny", s.whenFull))
	}
	if _, err := s.counterBytes(); err != nil {
		errs = append(errs, err)
	}
	if _, _, err := newLogger(io.Discard, s.logLevel, s.logFormat); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// insecureWords are the words of --insecure. Each lifts one check.
var insecureWords = []string{"secret"}

// validateSecret wants a secret where other machines reach this node.
func (s *settings) validateSecret() error {
	for _, word := range s.insecure {
		if !slices.Contains(insecureWords, word) {
			return fmt.Errorf("--insecure: %q is none of %s", word, strings.Join(insecureWords, ", "))
		}
	}
	ip := net.ParseIP(s.bind)
	if ip == nil || ip.IsLoopback() || s.secret != nil || s.secretFile != "" || slices.Contains(s.insecure, "secret") {
		return nil
	}
	return fmt.Errorf("--secret-file: not given, and --bind %s is reached from other machines, any of which could join the cluster: make a secret for all nodes "+
		"(head -c 32 /dev/urandom | base64 > secret), or do without by --insecure=secret", s.bind)
}

func (s *settings) validateExpect() error {
	switch ip := net.ParseIP(s.bind); {
	case s.bootstrapExpect < 0:
		return fmt.Errorf("--bootstrap-expect: %d is below 0", s.bootstrapExpect)
	case len(s.bootstrapNames) > 0 && s.bootstrapExpect > len(s.bootstrapNames):
		return fmt.Errorf("--bootstrap-expect: %d nodes are more than --bootstrap-names has, which are %s", s.bootstrapExpect, strings.Join(s.bootstrapNames, ", "))
	case len(s.bootstrapNames) > 0 && 2*s.bootstrapExpect <= len(s.bootstrapNames):
		return fmt.Errorf("--bootstrap-expect: %d is not more than half of --bootstrap-names, which are %s: they could found two clusters",
			s.bootstrapExpect, strings.Join(s.bootstrapNames, ", "))
	case s.bootstrapExpect == 0 && len(s.join) == 0 && ip != nil && !ip.IsLoopback():
		return fmt.Errorf("--bootstrap-expect: not given, nor --join, and --bind %s is reached from other machines: say with how many nodes a cluster is "+
			"founded, more than half of those that start (1 for a node that stays alone), or name the nodes to join with --join", s.bind)
	}
	return nil
}

// expect is with how many nodes this one founds a cluster; 0: it only joins one.
func (s *settings) expect() int {
	if len(s.bootstrapNames) > 0 && !slices.Contains(s.bootstrapNames, s.name) {
		return 0
	}
	if s.bootstrapExpect == 0 && len(s.join) == 0 {
		return 1 // on loopback, see validateExpect
	}
	return s.bootstrapExpect
}

// topKeys are the values of --top-keys.
var topKeys = map[string]limiter.TopKeys{"off": limiter.TopOff, "local": limiter.TopLocal, "on": limiter.TopOn}

// whenFull are the values of --when-full.
var whenFull = map[string]bucket.WhenFull{"evict": bucket.EvictOld, "deny": bucket.DenyNew}

func (s *settings) listenAddr(port uint16) string {
	return net.JoinHostPort(s.bind, strconv.Itoa(int(port)))
}

// defaultSettings are the values of flags that are not given.
func defaultSettings() settings {
	var s settings
	s.register(pflag.NewFlagSet("", pflag.ContinueOnError))
	return s
}

// joinTargets are --join with a port each: other nodes are taken to gossip at
// the port that this one does.
func (s *settings) joinTargets() []string {
	targets := make([]string, len(s.join))
	for i, j := range s.join {
		targets[i] = j
		if s.gossipPort != 0 {
			targets[i] = withPort(j, int(s.gossipPort))
		}
	}
	return targets
}

// parseBytes reads a size such as 512MiB or 1GB.
func parseBytes(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size such as 512MiB", text)
	}
	return int64(n), nil
}

func newServe() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `Run a node of the cluster until SIGINT or SIGTERM. It then hands its counters over to
the others before it stops; a second signal cuts that short.

Every flag can also be given as an environment variable (SLUICE_ and the flag's
name in capitals, dashes as underscores) or as a key of the --config file. The
command line wins over the environment, and the environment over the file.`,
		Example: "  sluice serve --name n1 --bind 127.0.1.1 --join 127.0.1.1,127.0.1.2 --bootstrap-expect 2 --rules examples/rules",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settle(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			if err := s.validate(); err != nil {
				return usageError(err)
			}
			log, level, err := newLogger(cmd.ErrOrStderr(), s.logLevel, s.logFormat)
			if err != nil {
				return usageError(err)
			}
			s.admin.level = level
			warnOfUnknown(cmd.Flags(), os.Environ(), log)
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			s.limitMemory()
			s.gc = newGCTuner()
			return serve(ctx, s, log)
		},
	}
	s.register(cmd.Flags())
	return cmd
}

// serve runs one node until ctx ends or the node fails.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	var n *node
	var err error
	// It may read a large snapshot. Once it runs, it looks itself.
	s.gc.during(func() { n, err = openNode(ctx, s, log) })
	if err != nil {
		return &codedError{exitDenied, err}
	}
	defer onSecondSignal(func() { close(n.hurry) })()
	if err := n.run(ctx); err != nil {
		return &codedError{exitDenied, err}
	}
	return nil
}

// onSecondSignal calls f when the process has been told to stop twice: the first time is
// for ctx. A third signal ends the process at once. The result ends it.
func onSecondSignal(f func()) (end func()) {
	told, over := make(chan os.Signal, 4), make(chan struct{})
	signal.Notify(told, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(told)
		for range 2 {
			select {
			case <-told:
			case <-over:
				return
			}
		}
		f()
	}()
	return func() { close(over) }
}

// newLogger returns a logger and its level, which may be changed while it is used.
func newLogger(w io.Writer, level, format string) (*slog.Logger, *slog.LevelVar, error) {
	l, err := parseLevel(level)
	if err != nil {
		return nil, nil, fmt.Errorf("--log-level: %w", err)
	}
	v := new(slog.LevelVar)
	v.Set(l)
	options := &slog.HandlerOptions{Level: v}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), v, nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), v, nil
	}
	return nil, nil, fmt.Errorf("--log-format: %q is neither text nor json", format)
}
