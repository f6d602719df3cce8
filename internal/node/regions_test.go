package node

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
)

// TestRegionsOverTLS: clusters of two regions are linked over mutual TLS, and a node with a certificate of another CA is not.
func TestRegionsOverTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newPapers(t), newPapers(t)
	node := func(p papers, name, region string, regions ...string) *running {
		s := testConfig(t)
		s.Name, s.Region, s.Regions = name, region, regions
		p.withPeerTLS(t, &s)
		return startNode(t, s)
	}
	us, ap := node(ours, "u1", "us", "eu=127.0.0.1:1"), node(theirs, "a1", "ap", "eu=127.0.0.1:1")
	eu := node(ours, "e1", "eu", "us="+us.Addrs().Peer.String(), "ap="+ap.Addrs().Peer.String())
	await(t, "linked to one region", func() bool {
		states := eu.regionStates()
		return states[1].State == facts.RegionLinked && strings.Contains(states[0].Reason, "certificate")
	})
	states := eu.regionStates()
	if s := states[1]; s.Name != "us" || strings.Join(s.Nodes, " ") != "u1" || s.RTT <= 0 || s.RTT > 5*time.Second || s.Reason != "" {
		t.Errorf("%+v", s)
	}
	if s := states[0]; s.Name != "ap" || s.State != facts.RegionUnreached || !strings.Contains(s.Reason, "certificate") {
		t.Errorf("%+v", s)
	}
	if warnings := eu.regionWarnings(); len(warnings) != 1 || !strings.HasPrefix(warnings[0], "region ap is unreached: ") {
		t.Errorf("%q", warnings)
	}
	if members := len(eu.gossip.View().Members); members != 1 {
		t.Errorf("%d members", members)
	}
}

// TestRegionInCertificate: with {region} in --peer-tls-name, a node whose certificate is of another region than it says is not reached,
// and does not reach others; without it, any certificate will do.
func TestRegionInCertificate(t *testing.T) {
	t.Parallel()
	p := newPapers(t)
	node := func(name, region, host, template string, regions ...string) *running {
		s := testConfig(t)
		s.Name, s.Region, s.Regions = name, region, regions
		s.TLS.PeerCert, s.TLS.PeerKey, s.TLS.PeerCA = p.files(t, name, host)
		s.TLS.PeerName = template
		return startNode(t, s)
	}
	const template = "{name}.{region}.test"
	us := node("u1", "us", "*.us.test", template, "eu=127.0.0.1:1")
	// It has a certificate of us, and says that it is of ap.
	ap := node("a1", "ap", "*.us.test", "{name}", "eu=127.0.0.1:1", "us="+us.Addrs().Peer.String())
	eu := node("e1", "eu", "*.eu.test", template, "us="+us.Addrs().Peer.String(), "ap="+ap.Addrs().Peer.String())
	await(t, "linked to the region whose certificate names it", func() bool {
		states := eu.regionStates()
		return states[1].State == facts.RegionLinked && strings.Contains(states[0].Reason, `its certificate is not one for "a1.ap.test"`)
	})
	if s := eu.regionStates()[0]; s.State == facts.RegionLinked {
		t.Errorf("%+v", s)
	}
	await(t, "the other way", func() bool {
		states := ap.regionStates()
		return states[1].State != facts.RegionLinked && states[1].Reason != ""
	})
}
