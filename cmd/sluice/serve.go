package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicecluster/sluice/internal/node"
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
	f.StringVar(&s.Name, "name", s.Name, "this node's `name`, unique in the cluster and the same after a restart (default: the host's name)")
	f.StringVar(&s.Bind, "bind", s.Bind, "`address` to listen on; 0.0.0.0 or :: for all addresses of this machine, which other machines can reach")
	f.StringVar(&s.Advertise, "advertise", s.Advertise, "`address` at which other nodes reach this one (default: --bind, or the host's address if --bind is unspecified)")
	f.StringSliceVar(&s.Join, "join", s.Join, "other nodes' `addresses` or DNS names, host or host:gossip-port, comma separated; resolved again at every attempt")
	f.StringVar(&s.Region, "region", s.Region, "`name` of the region that this node's cluster is, equal on all its nodes, 1 to 63 of a-z, 0-9 and -; for clusters that are linked to those of other --regions")
	f.StringSliceVar(&s.Regions, "regions", s.Regions, "other regions' nodes, as `region=address`, comma separated: host or host:peer-port, or DNS names, which are resolved again; further addresses of a region follow without its name; this node's region may be in the list, and its addresses are not used; mutual TLS is required beyond loopback (see --peer-tls)")
	f.StringVar(&s.RegionsFile, "regions-file", s.RegionsFile, "`file` with --regions, a region in each line as region=address,address; re-read when it changes: addresses at once, and one region more or less at a time, in the files of all regions")
	f.StringSliceVar(&s.RegionWeights, "region-weights", s.RegionWeights, "`region=weight`, comma separated, 1 to 1000, for those that are not 1; equal in all regions; by it a region that does not reach a limit's home has a share under on_partition: share")
	f.IntVar(&s.BootstrapExpect, "bootstrap-expect", s.BootstrapExpect, "number of `nodes` without a cluster that found one together, all with this flag; more than half of the nodes that start (default: 1 without --join on a loopback address; with --join this node only joins)")
	f.StringSliceVar(&s.BootstrapNames, "bootstrap-names", s.BootstrapNames, "`names` of the nodes that may found a cluster, comma separated; other nodes only join (default: all with --bootstrap-expect)")
	f.Uint16Var(&s.GRPCPort, "grpc-port", s.GRPCPort, "gRPC `port`; 0 picks a free one")
	f.Uint16Var(&s.HTTPPort, "http-port", s.HTTPPort, "HTTP `port`; 0 picks a free one")
	f.Uint16Var(&s.PeerPort, "peer-port", s.PeerPort, "`port` for checks forwarded by other nodes; 0 picks a free one")
	f.Uint16Var(&s.GossipPort, "gossip-port", s.GossipPort, "gossip `port`, TCP and UDP; 0 picks a free one")
	f.StringVar(&s.Rules, "rules", s.Rules, "rule file or directory; re-read when it changes")
	f.StringVar(&s.Callers, "callers", s.Callers, "`file` with the access control list of callers, re-read when it changes; without it every client may check and reset")
	f.BoolVar(&s.MergeDomains, "merge-domains", s.MergeDomains, "allow several rule files for one domain")
	f.StringVar(&s.UnknownDomain, "unknown-domain", s.UnknownDomain, "response to a check in a domain without rules: allow or error")
	f.StringVar(&s.SecretFile, "secret-file", s.SecretFile, "`file` with the cluster's secret, equal on all nodes; re-read when it changes; required where --bind is no loopback address")
	f.StringSliceVar(&s.Insecure, "insecure", s.Insecure, "safety checks to skip, by their `words`, comma separated: secret (start beyond loopback without --secret-file: any process that reaches the ports can join the cluster), region-tls (connections to other regions beyond loopback without mutual TLS)")
	f.StringVar(&s.TopKeys, "top-keys", s.TopKeys, "count the heaviest keys by name: off, local (shown to operators and to other nodes) or on (shown to every client)")
	f.BoolVar(&s.Console, "console", s.Console, "serve the console, a web page for operators, at /console on the HTTP port; `sluice console` logs a browser in")
	f.StringVar(&s.MetricsAddr, "metrics-addr", s.MetricsAddr, "`address` (host:port) of a port with /metrics, /healthz and /readyz alone, in plain HTTP without --tls-cert and --callers, beside the HTTP port; for example 10.0.0.1:7465, or :7465 for all addresses")
	f.DurationVar(&s.GRPCMaxConnectionAge, "grpc-max-connection-age", s.GRPCMaxConnectionAge, "age, plus or minus a tenth, at which clients of the gRPC port are told to open another connection, so that those behind one address spread over new nodes; calls in progress end first; 0 for no bound")
	f.StringVar(&s.TLS.Cert, "tls-cert", s.TLS.Cert, "`file` with the certificate of the gRPC and HTTP ports, PEM, followed by its chain; turns TLS on; this and the other TLS files are re-read when they change")
	f.StringVar(&s.TLS.Key, "tls-key", s.TLS.Key, "`file` with the key of --tls-cert, PEM")
	f.StringVar(&s.TLS.ClientCA, "tls-client-ca", s.TLS.ClientCA, "`file` with the CAs of clients' certificates, PEM")
	f.StringVar(&s.TLS.ClientAuth, "tls-client-auth", s.TLS.ClientAuth, "certificates of clients: none, request (a certificate that is shown must be valid) or require; /healthz and /readyz require none")
	f.StringVar(&s.TLS.MinVersion, "tls-min-version", s.TLS.MinVersion, "oldest TLS version on any port: 1.2 or 1.3")
	f.StringVar(&s.TLS.PeerCert, "peer-tls-cert", s.TLS.PeerCert, "`file` with this node's certificate for other nodes, both as server and as client; turns TLS between nodes on")
	f.StringVar(&s.TLS.Peers, "peer-tls", s.TLS.Peers, "TLS between nodes: off, accept (accepts connections with and without TLS and dials TLS where the other node supports it; to turn TLS on or off node by node) or require (default: require with --peer-tls-cert, else off)")
	f.StringVar(&s.TLS.PeerKey, "peer-tls-key", s.TLS.PeerKey, "`file` with the key of --peer-tls-cert")
	f.StringVar(&s.TLS.PeerCA, "peer-tls-ca", s.TLS.PeerCA, "`file` with the CAs of other nodes' certificates")
	f.StringVar(&s.TLS.PeerName, "peer-tls-name", s.TLS.PeerName, "DNS `name` that a node's certificate must have; {name} is the node's --name, {region} its --region")
	f.StringVar(&s.GossipKeyring, "gossip-keyring", s.GossipKeyring, "`file` with the keys that encrypt gossip, base64, one per line, the first encrypts outgoing messages; re-read when it changes")
	f.BoolVar(&s.EnvoyAllOrNothing, "envoy-all-or-nothing", s.EnvoyAllOrNothing, "charge all descriptors of a request from Envoy atomically instead of one by one")
	f.BoolVar(&s.EnvoyResponseHeaders, "envoy-response-headers", s.EnvoyResponseHeaders, "have Envoy send its clients the headers RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset")
	f.BoolVar(&s.EnvoyDynamicMetadata, "envoy-dynamic-metadata", s.EnvoyDynamicMetadata, "pass to Envoy's next filters the request's descriptors and the metadata of its rules")
	f.DurationVar(&s.CheckTimeout, "check-timeout", s.CheckTimeout, "longest time to look for a key's owner before the rule's on_failure decides; other nodes take over a crashed node's keys within 1.2s")
	f.StringSliceVar(&s.AssumeDeadline, "assume-deadline", s.AssumeDeadline, "how long proxies wait that have a timeout and send no deadline, by `api=time`, comma separated: envoy=20ms, forward-auth=50ms; checks are answered before it")
	f.DurationVar(&s.JoinTimeout, "join-timeout", s.JoinTimeout, "how long a starting node waits for a --join target before it takes part in founding a cluster (see --bootstrap-expect)")
	f.DurationVar(&s.ShutdownTimeout, "shutdown-timeout", s.ShutdownTimeout, "longest time for calls in progress to finish when stopping")
	f.DurationVar(&s.HandoverTimeout, "handover-timeout", s.HandoverTimeout, "longest time to hand counters over to other nodes when stopping; a second signal cuts it short")
	f.DurationVar(&s.ForgetAfter, "forget-after", s.ForgetAfter, "how long a crashed node stays in the voter set; then the other voters remove it")
	f.DurationVar(&s.LostStateHold, "lost-state-hold", s.LostStateHold, "longest time that rules with on_lost_state: deny deny units of lost counters that may have been spent (default: until the counters are back, or their windows have ended)")
	f.DurationVar(&s.MaxClockSkew, "max-clock-skew", s.MaxClockSkew, "how far this node's clock may be off the median of the voters' clocks before new windows follow the median")
	f.DurationVar(&s.SettleWindow, "settle-window", s.SettleWindow, "how long outcomes of reservations are remembered, up to 24h; a later settlement is an error and charges nothing (default: the longest max_ttl of the rules, at least 10m)")
	f.IntVar(&s.Replicas, "replicas", s.Replicas, "how many other nodes keep a `replica` of each partition that this node owns: 1, or 2 to survive the loss of two nodes at once; equal on all nodes")
	f.StringVar(&s.Zone, "zone", s.Zone, "`name` of the zone that this node runs in; replicas are kept in other zones than the owner's if the cluster has several")
	f.IntVar(&s.MaxEntries, "max-entries", s.MaxEntries, "maximum number of counters; 0 for as many as fit in --memory-limit")
	f.StringVar(&s.WhenFull, "when-full", s.WhenFull, "what happens to a new key when there is no room for its counter: evict evicts another counter, deny denies the key")
	f.StringVar(&s.DataDir, "data-dir", s.DataDir, "`directory` for snapshots that survive a restart of the whole cluster, one per node; none by default")
	f.DurationVar(&s.SnapshotInterval, "snapshot-interval", s.SnapshotInterval, "interval of snapshots to --data-dir; 0 writes one only when stopping")
	f.StringVar(&s.Admin.Dir, "operators-dir", s.Admin.Dir, operatorsDirHelp)
	f.StringVar(&s.Admin.Addr, "admin-addr", s.Admin.Addr, "loopback `address` (host:port) for operators, with the token in --operators-dir; serves the same API as their socket; for example 127.0.0.1:7464; off by default")
	f.BoolVar(&s.Admin.Anywhere, "admin-anywhere", s.Admin.Anywhere, "allow an --admin-addr that other machines reach: the token is sent there without TLS")
	f.StringSliceVar(&s.Admin.Hosts, "allowed-hosts", s.Admin.Hosts, "further host `names`, beside localhost and addresses, by which browsers may call this node, comma separated")
	f.IntVar(&s.Bounds.MaxConnections, "max-connections", s.Bounds.MaxConnections, "maximum number of connections to each port")
	f.IntVar(&s.Bounds.MaxPerAddress, "max-connections-per-address", s.Bounds.MaxPerAddress, "maximum number of connections to each port from one IPv4 address or IPv6 /64 network")
	f.IntVar(&s.Bounds.MaxCalls, "max-calls", s.Bounds.MaxCalls, "maximum number of calls with checks in progress, a call counting one for each 64 of its checks; calls above it are rejected")
	f.DurationVar(&s.Bounds.MaxWait, "max-wait", s.Bounds.MaxWait, "how long work may wait for a processor before calls with checks are rejected; 0 for no bound")
	f.IntVar(&s.Bounds.MaxInlineEntries, "max-inline-log-entries", s.Bounds.MaxInlineEntries, "maximum number of log entries and sub-windows that the inline limits of one check may keep")
	f.StringVar(&s.Bounds.MemoryLimit, "memory-limit", s.Bounds.MemoryLimit, "maximum memory of the process, for example 256MiB, at least 64MiB; counters use at most three quarters of what exceeds 44 MiB (default: half of the control group's limit, without one a quarter of the machine's memory)")
	f.StringVar(&s.Traces.Endpoint, "otlp-endpoint", s.Traces.Endpoint, "`URL` of an OpenTelemetry collector to send traces to over gRPC, for example http://127.0.0.1:4317, or https:// for TLS; "+
		"without it, OTEL_EXPORTER_OTLP_ENDPOINT, and without that no traces")
	f.Float64Var(&s.Traces.Share, "trace-sample", s.Traces.Share, "share of calls to trace, 0 to 1, of calls without a trace context")
	f.IntVar(&s.Traces.Callers, "trace-callers", s.Traces.Callers, "maximum number of calls a second to trace because their caller is traced; 0 applies --trace-sample to all calls")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// operatorsDirHelp is the text of --operators-dir, of nodes and of the commands that ask them.
const operatorsDirHelp = "`directory` with the operators' socket and token, accessible only to the node's user (default: a directory of this user in $XDG_RUNTIME_DIR, the directory for temporary files or /dev/shm)"

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
the others before it stops; a second signal cuts that short. SIGHUP reloads the rules,
certificates, secrets and other files that the node follows.

Exit codes: 0 stopped, 1 failed, 2 wrong usage, 3 stopped while no other voter answered that
could take the counters over, and they are in no snapshot either.

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
			out := openLogWriter(cmd.ErrOrStderr())
			defer out.Close()
			log, level, err := newLogger(out, s.logLevel, s.logFormat)
			if err != nil {
				return usageError(err)
			}
			s.Admin.Level, s.LostLogLines, s.Version, s.OwnProcess = level, out.lost.Load, versionString(), true
			warnOfUnknown(cmd.Flags(), os.Environ(), log)
			return serve(cmd.Context(), s.Config, log)
		},
	}
	s.register(cmd.Flags())
	groupFlags(cmd, serveGroups)
	return cmd
}

// serve runs one node until ctx ends or the node fails.
func serve(ctx context.Context, c node.Config, log *slog.Logger) error {
	signals := openSignals()
	defer signals.Close()
	n, err := node.Open(ctx, c, log)
	if err != nil {
		return &codedError{exitDenied, err}
	}
	signals.follow(n, log)
	switch err := n.Run(ctx); {
	case errors.Is(err, node.ErrNotHandedOver):
		return withCode(exitNoAnswer, err)
	default:
		return withCode(exitDenied, err)
	}
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
