package peer

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// RegionAddr is the address for a Pool of a node at addr in another region. Only a node of that region is accepted there, and
// Retain keeps its connections.
func RegionAddr(region, addr string) string { return region + "@" + addr }

// splitRegion returns the two parts of a RegionAddr. region is empty for the address of a node of this cluster.
func splitRegion(addr string) (region, host string) {
	if region, host, ok := strings.Cut(addr, "@"); ok {
		return region, host
	}
	return "", addr
}

// RegionError says that a node is not of the region that it should be of.
type RegionError struct {
	// Want is the region that was expected, Got the one that the node named; empty if it has none.
	Want, Got string
	// Name and Boot are the node's.
	Name, Boot string
}

func (e *RegionError) Error() string {
	return fmt.Sprintf("region: the other node, %q, is of region %q, and not of region %q; nodes of one cluster need the same --region", e.Name, e.Got, e.Want)
}

// ownRegion reports whether a node that names this region may be of this node's cluster. A node without a region is, so that
// --region can be given to the nodes of a cluster one by one.
func (c *Config) ownRegion(region string) bool {
	return region == c.Region || region == "" || c.Region == ""
}

// checkRegion returns why the sender of h, which this node has dialed, is not of the region, or nil. An empty one is this node's.
func (c *Config) checkRegion(region string, h *peerv1.Hello) error {
	if h.GetMajor() != Major || region == h.Region || region == "" && c.ownRegion(h.Region) {
		return nil // of another major, compatible says more
	}
	return &RegionError{Want: cmp.Or(region, c.Region), Got: clip(h.Region), Name: clip(h.Name), Boot: h.Boot}
}

// admitRegion returns why the sender of h, which has dialed this node, is rejected, or nil. linked says that nodes of other
// regions may have such a stream.
func (c *Config) admitRegion(linked bool, h *peerv1.Hello) error {
	switch {
	case c.ownRegion(h.Region):
		return nil
	case c.HasRegion == nil || !c.HasRegion(h.Region):
		return fmt.Errorf("region: the other node is of region %q, which --regions of this one, of region %q, does not have", clip(h.Region), c.Region)
	case !linked:
		return &RegionError{Want: c.Region, Got: clip(h.Region), Name: clip(h.Name), Boot: h.Boot}
	}
	return nil
}

// checkLinked returns why a node of another region may not send records, or nil.
func checkLinked(region string, records []check.Record) error {
	for i := range records {
		switch r := &records[i]; {
		case !r.Relay:
			return errors.New("a node of another region sends a record that is not to be relayed")
		case r.Grant && r.Once != check.HashOf(region):
			return fmt.Errorf("a node of region %q requests a lease for another region", clip(region))
		}
	}
	return nil
}

// checkRequest returns why a node of that region may not send the request, or nil.
func (c *Config) checkRequest(region string, request message.Body) error {
	switch m := request.(type) {
	case *message.RegionRequest:
	case *message.RegionMessages:
		if m.From.Name != region {
			return fmt.Errorf("a node of region %q sends messages of region %q", clip(region), clip(m.From.Name))
		}
	default:
		if !c.ownRegion(region) {
			return fmt.Errorf("a node of another region sends a %T", request)
		}
	}
	return nil
}

// Traffic counts the bytes of connections that a Pool has made to nodes of one region.
type Traffic struct{ in, out atomic.Uint64 }

// Bytes returns how many bytes were received and sent, those of TLS included.
func (t *Traffic) Bytes() (in, out uint64) { return t.in.Load(), t.out.Load() }

// Traffic returns the traffic with another region.
func (p *Pool) Traffic(region string) *Traffic {
	t, _ := p.traffic.LoadOrStore(region, new(Traffic))
	return t.(*Traffic)
}

// countedConn counts its bytes.
type countedConn struct {
	net.Conn
	traffic *Traffic
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.traffic.in.Add(uint64(n))
	return n, err
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.traffic.out.Add(uint64(n))
	return n, err
}

// Keep makes the connection for records that are Relay to addr, unless there is one, so that no call waits for it.
func (p *Pool) Keep(addr string) {
	w, err := p.linksTo(addr)
	if err != nil {
		return
	}
	l := w.sync
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed == nil && l.mu.session == nil && !l.mu.dialing && !l.mu.retry.waits() {
		l.mu.dialing = true
		p.wg.Go(l.connect)
	}
}

// Drop closes the connections to addr: calls in flight fail.
func (p *Pool) Drop(addr string) {
	p.mu.Lock()
	w := p.mu.links[addr]
	delete(p.mu.links, addr)
	p.mu.Unlock()
	p.dialTimes.Delete(addr)
	if w != nil {
		w.close(errSilent)
	}
}
