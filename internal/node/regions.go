package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/regions"
	"github.com/sluicecluster/sluice/internal/reload"
	"github.com/sluicecluster/sluice/rules"
)

// openRegions prepares the links to other regions, if there are any.
func (n *Node) openRegions() error {
	if !n.config.hasRegions() {
		return nil
	}
	list, err := n.regionList.Load().WithWeights(n.config.RegionWeights)
	if err != nil {
		return fmt.Errorf("--region-weights: %w", err)
	}
	n.regions = regions.New(regions.Config{
		List: list, Pool: n.peers, Clock: func() int64 { return n.cluster.Now() }, MaxClockSkew: n.config.MaxClockSkew,
		Member: n.isMember, Rules: n.globals.Load, Log: n.log,
	})
	if n.config.RegionsFile == "" {
		return nil
	}
	return n.follow("regions", "--regions-file", n.config.RegionsFile, 0, n.takeRegions)
}

// takeRegions puts a list of regions into force.
func (n *Node) takeRegions(text []byte) error {
	c := n.config
	c.Regions = regions.Items(text)
	next, err := c.regions()
	if err != nil {
		return err
	}
	if err := c.checkPlainRegions(); err != nil {
		return fmt.Errorf("--peer-tls: %w", err)
	}
	weighed, err := next.WithWeights(n.config.RegionWeights)
	if err != nil {
		return fmt.Errorf("--region-weights: %w", err)
	}
	gone, err := n.regionList.Load().Next(next)
	if err != nil {
		return err
	}
	if gone != "" {
		// If one region did not hear it any more and others did, they would take it or the other for lost.
		if set, _, _ := n.cluster.Roles(); set.Has(gone) {
			return fmt.Errorf("region %s is not in it, and runs: pass on its keys with `sluice regions promote` there, and stop it (%w)", gone, reload.ErrLater)
		}
	}
	n.regionList.Store(next)
	n.regions.Set(weighed)
	return nil
}

// isMember reports whether a boot ID is that of a member of this cluster, if it is known.
func (n *Node) isMember(boot string) (is, known bool) {
	is = boot == n.boot || slices.ContainsFunc(n.gossip.View().Members, func(m member.Member) bool { return m.Boot == boot })
	return is, is || n.joined.Load()
}

// regionStates are the states of other regions, nil without --regions.
func (n *Node) regionStates() []facts.Region {
	if n.regions == nil {
		return nil
	}
	return n.regions.Status()
}

// regionWarnings says what is wrong with other regions, a line each.
func (n *Node) regionWarnings() (list []string) {
	for _, r := range n.regionStates() {
		if text := r.Problem(); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// regionAnswer answers a node of another region.
func (n *Node) regionAnswer(q *message.RegionRequest) message.Body {
	a := &message.RegionResponse{ClusterID: n.cluster.Stats().Set.ID, Clock: n.cluster.Now()}
	n.globals.Load().Answer(q, a)
	return a
}

// setGlobals sets the rules that other regions must have too.
func (n *Node) setGlobals(set *rules.Set) {
	if n.regions == nil {
		return
	}
	var list []message.GlobalRule
	for _, r := range set.Rules() {
		if r.Global && r.Limits != nil {
			list = append(list, message.GlobalRule{Name: r.Path, Home: r.Home, Sum: check.HashOf(fmt.Sprintf("%+v", r.Limits.List()))})
		}
	}
	n.globals.Store(n.regions.Rules(list))
}

// passTimeout bounds how long a request about roles waits for the region's speaker.
const passTimeout = 2 * time.Second

// passAnswer answers a node of this region, for which this one speaks.
func (n *Node) passAnswer(ctx context.Context, q *message.PassRequest) message.Body {
	if n.regions == nil {
		return nil
	}
	a := new(message.PassResponse)
	if err := n.cluster.PassRole(ctx, q.Role.Of, q.Role.At, q.Stopped); err != nil {
		a.Problem = err.Error()
	}
	return a
}

// addRoles reports which region decides the keys of which home.
func (n *Node) addRoles(r *facts.Node) {
	if n.regions == nil {
		return
	}
	set, decides, problem := n.cluster.Roles()
	r.Decides, r.RoleProblem = decides, short(problem)
	r.Weight, _ = n.regions.Part()
	if !set.Zero() { // else it is not known
		r.DecidedBy = set.Plays(n.config.Region)
		for i := range r.Regions {
			r.Regions[i].DecidedBy = set.Plays(r.Regions[i].Name)
		}
	}
	if rules := n.service.Rules(); rules != nil {
		for _, rule := range rules.Rules() {
			if home := rule.Home; home != "" && set.Plays(home) == n.config.Region && !slices.Contains(decides, home) && !slices.Contains(r.Undecided, home) {
				r.Undecided = append(r.Undecided, home)
			}
		}
	}
}

// PromoteRegion implements limiter.Cluster.
func (n limiterCluster) PromoteRegion(ctx context.Context, region, home string, stopped bool) error {
	if n.regions == nil {
		return member.ErrNoRegions
	}
	for _, name := range []string{region, home} {
		if !n.regions.Has(name) {
			return member.Rejection(fmt.Sprintf("%q is not in --regions", name))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	q := &message.PassRequest{Role: message.Role{Of: home, At: region}, Stopped: stopped}
	var answer message.Body
	var err error
	if name := n.cluster.Speaker(); name == n.config.Name {
		answer = n.passAnswer(ctx, q)
	} else {
		err = fmt.Errorf("node %q, which speaks for this region, is not heard", name)
		for p, addr := range n.cluster.Others() {
			if p.Name == name {
				answer, err = n.peers.Query(ctx, addr, q)
			}
		}
	}
	a, ok := answer.(*message.PassResponse)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("no answer of the node that speaks for this region")
	case a.Problem != "":
		return member.Rejection(a.Problem)
	}
	n.log.Warn("keys of a region are decided elsewhere from now on, by hand", "home", home, "region", region, "stopped", stopped)
	return nil
}
