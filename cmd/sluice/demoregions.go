package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/longwire"
	"github.com/sluicecluster/sluice/internal/node"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

const (
	regionNodes  = 2
	maxDemoDelay = time.Second
)

var demoRegions = []string{"eu", "us", "ap"}

// regionRules is a rule of the demo's own.
const regionRules = `domain: world
descriptors:
  - key: user
    scope: global
    home: eu
    limits: [60/1h]
`

// runRegions is run for regions.
func (d *demo) runRegions(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) (err error) {
	own := d.rules == ""
	remove, err := d.prepare()
	if err != nil {
		return err
	}
	defer remove()
	d.links = map[[2]string][]*longwire.Wire{}
	defer func() {
		for _, list := range d.links {
			for _, w := range list {
				w.Close()
			}
		}
	}()
	for _, from := range demoRegions {
		for to, name := range demoRegions {
			for i := to * regionNodes; name != from && i < (to+1)*regionNodes; i++ {
				w, err := longwire.New(longwire.Config{Listen: "127.0.0.1:0", Target: d.addr(i, 2), Delay: d.delay / 2})
				if err != nil {
					return err
				}
				d.links[[2]string{from, name}] = append(d.links[[2]string{from, name}], w)
			}
		}
	}
	fmt.Fprintf(out, "Starting the regions %s, of %d nodes each, %v apart, with the rules in %s …\n", strings.Join(demoRegions, ", "), regionNodes, d.delay, d.rules)
	ctx, stop := context.WithCancel(ctx)
	clients, end, err := d.start(ctx, stop, log)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return err
	}
	for i := range demoRegions {
		if _, err := awaitAgreement(ctx, clients[i*regionNodes:(i+1)*regionNodes]); err != nil {
			return fmt.Errorf("region %s: %w", demoRegions[i], err)
		}
	}
	status, err := d.awaitRegions(ctx)
	if err != nil {
		return err
	}
	if err := fprint(out, "They are linked:\n"+regionsText(status.Nodes)); err != nil {
		return err
	}
	if own {
		if err := showRegionChecks(ctx, out, clients); err != nil {
			return err
		}
	}
	if d.exit {
		return nil
	}
	fmt.Fprint(out, "\nTry, in another terminal:\n")
	for i, name := range demoRegions {
		fmt.Fprintf(out, "  %s check --addr %s --domain world user=me    # in %s\n", os.Args[0], d.addr(i*regionNodes, 0), name)
	}
	fmt.Fprintf(out, "  %s regions --addr %s\n\nor type here \"cut eu\", \"link eu\". Ctrl-C stops all.\n", os.Args[0], d.addr(regionNodes, 0))
	go d.cuts(in, out) // ends with the process
	<-ctx.Done()
	fmt.Fprintln(out, "\nStopping …")
	return nil
}

// configRegion makes c, of node i, one of a region.
func (d *demo) configRegion(c *node.Config, i int) {
	region := i / regionNodes
	c.Region = demoRegions[region]
	c.Name = fmt.Sprintf("%s-%d", c.Region, i%regionNodes+1)
	c.BootstrapExpect = regionNodes
	for j := range regionNodes {
		c.Join = append(c.Join, d.addr(region*regionNodes+j, 3))
	}
	for _, to := range demoRegions {
		name := to + "="
		for _, w := range d.links[[2]string{c.Region, to}] {
			c.Regions = append(c.Regions, name+w.Addr())
			name = ""
		}
	}
}

// awaitRegions waits, at most 30 s, until each region decides the keys whose home it is, and returns what a node says.
func (d *demo) awaitRegions(ctx context.Context) (r *adminv1alpha1.StatusResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for i := 0; i < d.nodes(); {
		as := clientFlags{addrs: []string{d.addr(i, 0)}, timeout: 5 * time.Second, operator: true}
		r, err = ask(ctx, &as, apiClient.Status, &adminv1alpha1.StatusRequest{})
		if err == nil && !slices.ContainsFunc(r.Nodes, func(n *adminv1alpha1.NodeReport) bool { return !slices.Contains(n.Decides, n.Region) }) {
			i++
			continue
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			return nil, fmt.Errorf("the regions did not agree in time: %w", cmp.Or(err, ctx.Err()))
		}
	}
	return r, nil
}

// showRegionChecks asks for more than the limit of a user in all regions.
func showRegionChecks(ctx context.Context, out io.Writer, clients []apiClient) error {
	const each = 40
	check := &sluicev1.Check{Domain: "world", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "demo"}}}
	fmt.Fprintf(out, "\n60 checks an hour for one user in all regions, whose home is eu; %d are asked for in each:\n", each)
	admitted, took, all := make([]int, len(demoRegions)), make([]time.Duration, len(demoRegions)), 0
	for i := range each * len(demoRegions) {
		at := i % len(demoRegions)
		began := time.Now()
		resp, err := clients[at*regionNodes].Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{check}})
		if err != nil {
			return err
		}
		took[at] += time.Since(began) / each
		if resp.Decisions[0].Allowed {
			admitted[at]++
			all++
		}
	}
	for i, name := range demoRegions {
		fmt.Fprintf(out, "  %s: %d allowed, after %v on average\n", name, admitted[i], took[i].Round(time.Millisecond/10))
	}
	fmt.Fprintf(out, "  %d of 60 in all; regions hold the rest of the units for a moment\n", all)
	return nil
}

// cuts cuts regions off, and links them again, by the lines of in.
func (d *demo) cuts(in io.Reader, out io.Writer) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		what, region, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if off := what == "cut"; !off && what != "link" || !slices.Contains(demoRegions, region) {
			fmt.Fprintf(out, "want cut or link, and one of %s\n", strings.Join(demoRegions, ", "))
		} else {
			for way, list := range d.links {
				for _, w := range list {
					if way[0] == region || way[1] == region {
						w.Cut(off, off)
					}
				}
			}
		}
	}
}
