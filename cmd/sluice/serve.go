package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-project/sluice/internal/node"
)

// lookupEnv is where settings in the environment come from.
var lookupEnv = os.LookupEnv

// settings are the flags of `sluice serve`.
type settings struct {
	node.Config
	logLevel, logFormat string
}

// register adds a flag for each setting. Flags that are not given have the values of node.Defaults.
func (s *settings) register(f *pflag.FlagSet) {
	s.Config = node.Defaults()
	f.String("config", "", "YAML `file` with settings, keys named as these flags")
	f.StringVar(&s.Name, "name", s.Name, "this node's `name`, unique in the cluster and kept over restarts (default: the host's name)")
	f.StringVar(&s.Bind, "bind", s.Bind, "`address` to listen on; 0.0.0.0 or :: for all of this machine's, which other machines reach")
	f.StringVar(&s.Advertise, "advertise", s.Advertise, "`address` that other nodes reach this one at (default: --bind, or the host's own address if that is unspecified)")
	f.StringSliceVar(&s.Join, "join", s.Join, "other nodes' `addresses` or DNS names, host or host:gossip-port, comma separated; resolved again at every attempt")
	f.IntVar(&s.BootstrapExpect, "bootstrap-expect", s.BootstrapExpect, "found a cluster when so many `nodes` without one see each other, all with this flag; more than half of the nodes that start (default: 1 without --join on a loopback address; with --join this node only joins)")
	f.StringSliceVar(&s.BootstrapNames, "bootstrap-names", s.BootstrapNames, "the only nodes that take part in founding a cluster, by their `names`, comma separated; others only join (default: all with --bootstrap-expect)")
	f.Uint16Var(&s.GRPCPort, "grpc-port", s.GRPCPort, "gRPC `port`; 0 picks a free one")
	f.Uint16Var(&s.HTTPPort, "http-port", s.HTTPPort, "HTTP `port`; 0 picks a free one")
	f.Uint16Var(&s.PeerPort, "peer-port", s.PeerPort, "`port` for checks forwarded by other nodes; 0 picks a free one")
	f.Uint16Var(&s.GossipPort, "gossip-port", s.GossipPort, "gossip `port`, TCP and UDP; 0 picks a free one")
	f.StringVar(&s.Rules, "rules", s.Rules, "rule file or directory; re-read when it changes")
	f.StringVar(&s.Callers, "callers", s.Callers, "`file` with the access control list of callers, re-read when it changes; without it every client may check and reset")
	f.BoolVar(&s.MergeDomains, "merge-domains", s.MergeDomains, "allow several rule files for one domain")
	f.StringVar(&s.UnknownDomain, "unknown-domain", s.UnknownDomain, "answer to a check in a domain without rules: allow or error")
	f.StringVar(&s.SecretFile, "secret-file", s.SecretFile, "`file` with the cluster's secret, equal on all nodes; re-read when it changes; required where --bind is no loopback address")
	f.StringSliceVar(&s.Insecure, "insecure", s.Insecure, "checks to do without, by their `words`, comma separated: secret (start beyond loopback without --secret-file: any process that reaches the ports can join the cluster)")
	f.StringVar(&s.TopKeys, "top-keys", s.TopKeys, "count the heaviest keys by name: off, local (shown to operators and to other nodes) or on (shown to every client)")
	f.BoolVar(&s.Console, "console", s.Console, "serve the console, a page for operators, at /console on the HTTP port; `sluice console` logs a browser in")
	f.StringVar(&s.TLS.Cert, "tls-cert", s.TLS.Cert, "`file` with the certificate of the gRPC and HTTP ports, PEM, its chain behind it; turns TLS on; re-read when it changes, as are the other files")
	f.StringVar(&s.TLS.Key, "tls-key", s.TLS.Key, "`file` with the key of --tls-cert, PEM")
	f.StringVar(&s.TLS.ClientCA, "tls-client-ca", s.TLS.ClientCA, "`file` with the CAs of clients' certificates, PEM")
	f.StringVar(&s.TLS.ClientAuth, "tls-client-auth", s.TLS.ClientAuth, "certificates of clients: none, request (a certificate that is shown must be valid) or require; /healthz and /readyz require none")
	f.StringVar(&s.TLS.MinVersion, "tls-min-version", s.TLS.MinVersion, "oldest TLS that is spoken on any port: 1.2 or 1.3")
	f.StringVar(&s.TLS.PeerCert, "peer-tls-cert", s.TLS.PeerCert, "`file` with this node's certificate for other nodes, both as server and as client; turns TLS between nodes on")
	f.StringVar(&s.TLS.Peers, "peer-tls", s.TLS.Peers, "TLS between nodes: off, accept (both are taken, TLS is dialed where the other node speaks it; to turn it on or off node by node) or require (default: require with --peer-tls-cert, else off)")
	f.StringVar(&s.TLS.PeerKey, "peer-tls-key", s.TLS.PeerKey, "`file` with the key of --peer-tls-cert")
	f.StringVar(&s.TLS.PeerCA, "peer-tls-ca", s.TLS.PeerCA, "`file` with the CAs of other nodes' certificates")
	f.StringVar(&s.TLS.PeerName, "peer-tls-name", s.TLS.PeerName, "DNS `name` that a node's certificate must have; {name} is the node's --name")
	f.StringVar(&s.GossipKeyring, "gossip-keyring", s.GossipKeyring, "`file` with the keys that encrypt gossip, base64, one per line, the first for what is sent; re-read when it changes")
	f.BoolVar(&s.EnvoyAllOrNothing, "envoy-all-or-nothing", s.EnvoyAllOrNothing, "charge all descriptors of a request from Envoy or none, instead of each for itself")
	f.BoolVar(&s.EnvoyResponseHeaders, "envoy-response-headers", s.EnvoyResponseHeaders, "have Envoy tell its clients RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset")
	f.BoolVar(&s.EnvoyDynamicMetadata, "envoy-dynamic-metadata", s.EnvoyDynamicMetadata, "hand Envoy's next filters the request's descriptors and the metadata of its rules")
	f.DurationVar(&s.CheckTimeout, "check-timeout", s.CheckTimeout, "longest time to look for a key's owner before the rule's on_failure answers; others claim a crashed node's keys within 1.2s")
	f.DurationVar(&s.JoinTimeout, "join-timeout", s.JoinTimeout, "how long a starting node waits for a --join target before it takes part in founding a cluster (see --bootstrap-expect)")
	f.DurationVar(&s.ShutdownTimeout, "shutdown-timeout", s.ShutdownTimeout, "longest time for calls under way to finish when stopping")
	f.DurationVar(&s.HandoverTimeout, "handover-timeout", s.HandoverTimeout, "longest time to hand counters over to other nodes when stopping; a second signal cuts it short")
	f.DurationVar(&s.ForgetAfter, "forget-after", s.ForgetAfter, "how long a node that has crashed counts when a majority is needed; then the others go on without it")
	f.DurationVar(&s.LostStateHold, "lost-state-hold", s.LostStateHold, "longest time that rules with on_lost_state: deny deny what may have been spent of counters that are lost (default: until they are back, or their windows have ended)")
	f.DurationVar(&s.MaxClockSkew, "max-clock-skew", s.MaxClockSkew, "how far this node's clock may be off the median of the voters' before new windows follow that")
	f.IntVar(&s.Replicas, "replicas", s.Replicas, "how many other nodes keep a `replica` of what this node owns: 1, or 2 to survive two lost nodes at once; equal on all nodes")
	f.StringVar(&s.Zone, "zone", s.Zone, "`name` of the zone that this node runs in; replicas are kept in other zones than the owner's where there are any")
	f.IntVar(&s.MaxEntries, "max-entries", s.MaxEntries, "most counters to hold; 0 for as many as --memory-limit has room for")
	f.StringVar(&s.WhenFull, "when-full", s.WhenFull, "what happens to a new key when there is no room for its counter: evict evicts another counter, deny denies the key")
	f.StringVar(&s.DataDir, "data-dir", s.DataDir, "`directory` to keep counters in over a restart of the whole cluster, one for each node; none by default")
	f.DurationVar(&s.SnapshotInterval, "snapshot-interval", s.SnapshotInterval, "how often counters are written to --data-dir; 0 writes them only when stopping")
	f.StringVar(&s.Admin.Dir, "operators-dir", s.Admin.Dir, operatorsDirHelp)
	f.StringVar(&s.Admin.Addr, "admin-addr", s.Admin.Addr, "loopback `address` (host:port) for operators, with the token in --operators-dir: all that their socket serves; for example 127.0.0.1:7464; off by default")
	f.BoolVar(&s.Admin.Anywhere, "admin-anywhere", s.Admin.Anywhere, "allow an --admin-addr that other machines reach: the token travels there without TLS")
	f.StringSliceVar(&s.Admin.Hosts, "allowed-hosts", s.Admin.Hosts, "`names`, beside localhost and addresses, that browsers may call this node by, comma separated")
	f.IntVar(&s.Bounds.MaxConnections, "max-connections", s.Bounds.MaxConnections, "most connections to each port at once")
	f.IntVar(&s.Bounds.MaxPerAddress, "max-connections-per-address", s.Bounds.MaxPerAddress, "most of them from one IPv4 address or IPv6 network of 64 bits")
	f.IntVar(&s.Bounds.MaxCalls, "max-calls", s.Bounds.MaxCalls, "most calls with checks in progress, each counted as one for each 64 of its checks; what comes on top is rejected")
	f.DurationVar(&s.Bounds.MaxWait, "max-wait", s.Bounds.MaxWait, "how long work may wait for a processor before calls with checks are rejected; 0 for ever")
	f.IntVar(&s.Bounds.MaxInlineEntries, "max-inline-log-entries", s.Bounds.MaxInlineEntries, "most entries of logs and sub-windows that the limits of one check may keep, of those that come with it")
	f.StringVar(&s.Bounds.MemoryLimit, "memory-limit", s.Bounds.MemoryLimit, "most memory for the whole process, for example 256MiB, at least 64MiB; counters have half of it or less (default: half of what the control group may use, without one a quarter of the machine's)")
	f.StringVar(&s.Traces.Endpoint, "otlp-endpoint", s.Traces.Endpoint, "`URL` of an OpenTelemetry collector to send traces to over gRPC, for example http://127.0.0.1:4317, or https:// for TLS; "+
		"without it, OTEL_EXPORTER_OTLP_ENDPOINT, and without that no traces")
	f.Float64Var(&s.Traces.Share, "trace-sample", s.Traces.Share, "share of calls to trace, 0 to 1, of those whose callers do not say")
	f.IntVar(&s.Traces.Callers, "trace-callers", s.Traces.Callers, "most calls a second to trace because their callers are traced; 0 to trace by --trace-sample whatever they say")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// operatorsDirHelp is the text of --operators-dir, of nodes and of the commands that ask them.
const operatorsDirHelp = "`directory`, of the user alone that runs the node, with the operators' socket and token (default: of this user in $XDG_RUNTIME_DIR, the directory for temporary files or /dev/shm)"

// validate checks what flag parsing cannot, and fills defaults that depend on the host.
func (s *settings) validate() error {
	_, _, err := newLogger(io.Discard, s.logLevel, s.logFormat)
	return errors.Join(s.Config.Validate(), err)
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
		Example:           "  sluice serve --name n1 --bind 127.0.1.1 --join 127.0.1.1,127.0.1.2 --bootstrap-expect 2 --rules examples/rules",
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return usageError(settle(cmd.Flags(), lookupEnv)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.validate(); err != nil {
				return usageError(err)
			}
			log, level, err := newLogger(cmd.ErrOrStderr(), s.logLevel, s.logFormat)
			if err != nil {
				return usageError(err)
			}
			s.Admin.Level, s.Version, s.OwnProcess = level, versionString(), true
			warnOfUnknown(cmd.Flags(), os.Environ(), log)
			return serve(cmd.Context(), s.Config, log)
		},
	}
	s.register(cmd.Flags())
	return cmd
}

// serve runs one node until ctx ends or the node fails.
func serve(ctx context.Context, c node.Config, log *slog.Logger) error {
	n, err := node.Open(ctx, c, log)
	if err != nil {
		return &codedError{exitDenied, err}
	}
	defer onSecondSignal(n.Hurry)()
	return withCode(exitDenied, n.Run(ctx))
}

// onSecondSignal calls f at the second signal to stop: the first one ends the context of the command. A third signal ends the
// process at once. The result ends it.
func onSecondSignal(f func()) (end func()) {
	signals, over := make(chan os.Signal, 4), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		for range 2 {
			select {
			case <-signals:
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
	l, err := node.ParseLevel(level)
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
