package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicecluster/sluice/examples"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/longwire"
	"github.com/sluicecluster/sluice/internal/node"
	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/rules"
)

// demoNodes is the size of the demo's cluster: the smallest with a majority to spare.
const demoNodes = 3

type demo struct {
	rules    string
	port     uint16
	logLevel string
	// exit ends the demo after its own checks, for scripts.
	exit bool
	// regions: there are demoRegions of regionNodes nodes each, far apart.
	regions bool
	delay   time.Duration

	secret []byte // of this demo only
	links  map[[2]string][]*longwire.Wire
}

func newDemo() *cobra.Command {
	var d demo
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run three nodes on this machine and show a few decisions",
		Long: `Run three nodes on 127.0.0.1 in one process, wait until they agree, and, if the rules
limit logins as the examples do, make a few checks and show which node decided. The
cluster then runs until Ctrl-C; to stop single nodes, start each with sluice serve. The
first node's ports are 7460 (gRPC), 7461 (HTTP), 7462 (peers) and 7463 (gossip); the
second and third count from 7470 and 7480.

With --regions it runs three regions of two nodes each, eu, us and ap, with a wide area between
them that is made in the process. The rules must have a limit with scope: global, as the
demo's own have. Lines on standard input cut regions off.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most := 65535 - 10*uint16(d.nodes()); d.port < 1 || d.port > most {
				return usageError(fmt.Errorf("--port: %d is not between 1 and %d", d.port, most))
			}
			if d.delay < 0 || d.delay > maxDemoDelay {
				return usageError(fmt.Errorf("--delay: %v is not between 0 and %v", d.delay, maxDemoDelay))
			}
			if d.regions && !cmd.Flags().Changed("log-level") {
				d.logLevel = "error" // a region that is cut off on purpose is no news
			}
			log, _, err := newLogger(cmd.ErrOrStderr(), d.logLevel, "text")
			if err != nil {
				return usageError(err)
			}
			if d.regions {
				return withCode(exitDenied, d.runRegions(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), log))
			}
			return withCode(exitDenied, d.run(cmd.Context(), cmd.OutOrStdout(), log))
		},
	}
	cmd.Flags().StringVar(&d.rules, "rules", "", "rule file or directory (default: a copy of the examples, removed at the end)")
	cmd.Flags().Uint16Var(&d.port, "port", 7460, "first `port`; each node uses four from this, plus 10, plus 20")
	cmd.Flags().StringVar(&d.logLevel, "log-level", "warn", "debug, info, warn or error; with --regions error is the default")
	cmd.Flags().BoolVar(&d.regions, "regions", false, "three regions of two nodes each")
	cmd.Flags().DurationVar(&d.delay, "delay", 60*time.Millisecond, "with --regions, the round trip between two regions")
	cmd.Flags().BoolVar(&d.exit, "exit", false, "stop after the checks instead of waiting for Ctrl-C")
	return cmd
}

func (d *demo) run(ctx context.Context, out io.Writer, log *slog.Logger) (err error) {
	remove, err := d.prepare()
	if err != nil {
		return err
	}
	defer remove()
	set, _, err := rulefiles.Load(d.rules, rules.Options{})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Starting %d nodes on 127.0.0.1 with the rules in %s …\n", demoNodes, d.rules)
	ctx, stop := context.WithCancel(ctx)
	clients, end, err := d.start(ctx, stop, log)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return err
	}
	members, err := awaitAgreement(ctx, clients)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "They agree:")
	if err := fprint(out, membersText(members, false)); err != nil {
		return err
	}
	limited, _ := set.Match("auth", []rules.Entry{{Key: "auth_type", Value: "login"}, {Key: "user", Value: "demo"}})
	if limited != nil {
		if err := showChecks(ctx, out, clients); err != nil {
			return err
		}
	}
	if d.exit {
		return nil
	}
	d.printHints(out, limited != nil)
	<-ctx.Done()
	fmt.Fprintln(out, "\nStopping …")
	return nil
}

// nodes returns how many there are.
func (d *demo) nodes() int {
	if d.regions {
		return len(demoRegions) * regionNodes
	}
	return demoNodes
}

// prepare makes the secret and, unless there are others, the rules, which the caller removes.
func (d *demo) prepare() (remove func(), err error) {
	d.secret = make([]byte, limiter.MinSecret)
	rand.Read(d.secret) // never fails
	if d.rules != "" {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil { // the container image has no directory for temporary files
		dir, err = os.MkdirTemp("/dev/shm", "sluice-demo-")
	}
	if err != nil {
		return nil, err
	}
	d.rules = filepath.Join(dir, "rules")
	if err = os.CopyFS(dir, examples.Rules); err == nil && d.regions {
		err = os.WriteFile(filepath.Join(d.rules, "regions.yaml"), []byte(regionRules), 0o600)
	}
	return func() { os.RemoveAll(dir) }, err
}

// start runs the nodes until ctx ends. end must be called in any case: it calls stop, and returns their errors.
func (d *demo) start(ctx context.Context, stop func(), log *slog.Logger) (clients []apiClient, end func() error, err error) {
	var running sync.WaitGroup
	var conns []*grpc.ClientConn
	var runs []func() // all ports are open by then
	failed := make(chan error, d.nodes())
	end = func() (err error) {
		stop()
		running.Wait()
		close(failed)
		for e := range failed {
			err = errors.Join(err, e)
		}
		for _, c := range conns {
			c.Close()
		}
		return err
	}
	for i := range d.nodes() {
		c := d.config(i)
		n, err := node.Open(ctx, c, log)
		if err != nil {
			return nil, end, fmt.Errorf("%s: %w", c.Name, err)
		}
		runs = append(runs, func() {
			if err := n.Run(ctx); err != nil && !errors.Is(err, node.ErrNotHandedOver) {
				failed <- fmt.Errorf("%s: %w", c.Name, err)
				stop()
			}
		})
		conn, err := grpc.NewClient(d.addr(i, 0), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, end, err
		}
		conns, clients = append(conns, conn), append(clients, newAPI(conn))
	}
	for _, run := range runs {
		running.Go(run)
	}
	return clients, end, nil
}

// config of the demo's node i.
func (d *demo) config(i int) node.Config {
	c := node.Defaults()
	c.Version = versionString()
	c.Name = fmt.Sprintf("n%d", i+1)
	c.Bind = "127.0.0.1"
	c.Rules, c.Secret = d.rules, d.secret
	c.Bounds.MemoryLimit = "256MiB" // of each
	base := d.port + uint16(10*i)
	c.GRPCPort, c.HTTPPort, c.PeerPort, c.GossipPort = base, base+1, base+2, base+3
	if d.regions {
		d.configRegion(&c, i)
		return c
	}
	c.BootstrapExpect = demoNodes
	for i := range demoNodes {
		c.Join = append(c.Join, d.addr(i, 3))
	}
	return c
}

// addr is the address of a port of node i: 0 for gRPC, 3 for gossip.
func (d *demo) addr(i, port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(d.port)+10*i+port))
}

// awaitAgreement waits, at most 20 s, until all nodes list each other as serving, have the same ring, own their
// assigned partitions, and have replicas of all.
func awaitAgreement(ctx context.Context, clients []apiClient) (*adminv1alpha1.MembersResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if members := agreement(ctx, clients); members != nil {
			return members, nil
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return nil, fmt.Errorf("the nodes did not agree in time: %w", ctx.Err())
		}
	}
}

// agreement returns the members as the first node sees them, nil if the nodes do not agree yet.
func agreement(ctx context.Context, clients []apiClient) (first *adminv1alpha1.MembersResponse) {
	for _, c := range clients {
		r, err := c.Members(ctx, &adminv1alpha1.MembersRequest{})
		if err != nil {
			return nil
		}
		serving := 0
		for _, m := range r.Members {
			if m.State == "serving" && m.Owned == m.Partitions {
				serving++
			}
		}
		first = cmp.Or(first, r)
		// The counts are those of a moment ago.
		p := r.GetPartitionCounts()
		if serving != len(clients) || r.Ring != first.Ring || p.GetTakingOver() > 0 || p.GetBelowReplicas() > 0 || p.GetDivergent() > 0 {
			return nil
		}
	}
	return first
}

// showChecks spends a quota of five through all nodes in turn; the sixth check is denied.
func showChecks(ctx context.Context, out io.Writer, clients []apiClient) error {
	check := &sluicev1.Check{Domain: "auth", Descriptor_: []*sluicev1.Entry{{Key: "auth_type", Value: "login"}, {Key: "user", Value: "demo"}}}
	fmt.Fprintln(out, "\nFive logins a minute for one user, asked at each node in turn:")
	for i := range 6 {
		at := i % len(clients)
		resp, err := clients[at].Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{check}})
		if err != nil {
			return err
		}
		d := resp.Decisions[0]
		if d.Error != nil {
			return fmt.Errorf("%s: %s", d.Error.Field, d.Error.Message)
		}
		if err := fprint(out, fmt.Sprintf("  asked n%d: %s", at+1, decisionText(d, unmatched{}))); err != nil {
			return err
		}
	}
	return nil
}

// printHints prints what to try. Checks need the demo's own rules.
func (d *demo) printHints(out io.Writer, checks bool) {
	fmt.Fprint(out, "\nTry, in another terminal:\n")
	if checks {
		fmt.Fprintf(out, `  %[1]s check --domain auth auth_type=login user=me
  %[1]s check --addr 127.0.0.1:%[3]d --domain auth -o json auth_type=login user=me
  curl -i 127.0.0.1:%[2]d/v1/check -d '{"domain":"auth","descriptor":[{"key":"auth_type","value":"login"},{"key":"user","value":"me"}]}'
`, os.Args[0], d.port+1, d.port+10)
	}
	fmt.Fprintf(out, `  %[1]s status --addr 127.0.0.1:%[4]d
  curl 127.0.0.1:%[3]d/metrics

or open in a browser the address that this prints:
  %[1]s console --addr 127.0.0.1:%[2]d

Ctrl-C stops all three.
`, os.Args[0], d.port, d.port+1, d.port+20)
}
