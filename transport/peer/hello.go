package peer

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Version of the protocol that this package speaks. Streams between equal majors
// and minors at most one apart work; the higher minor must then do without what it
// added: 1.1 added mail, records that are sync or transient, and the status later; 1.2 records that are
// many checks, leases, and those that drain, cannot wait, or leave units free for others.
const (
	Major = 1
	Minor = 2
)

// minorHot is the minor that records came with which are Hot. An older node would decide them as one check.
const minorHot = 2

// minorReserve is the minor that records with Reserve came with.
const minorReserve = 2

// maxHelloText bounds names, boot ids and fingerprints in a Hello, in bytes.
const maxHelloText = 256

// errNoHello: a stream that does not begin as it must.
var errNoHello = errors.New("the first frame is not a hello: is this a sluice peer?")

func (c *Config) hello() *peerv1.Hello {
	return &peerv1.Hello{
		Major: Major, Minor: Minor,
		Name: c.Name, Boot: c.Boot,
		Placement: c.Placement, Secret: c.Secret,
	}
}

// welcome reports why the sender of h, at the other side of the connection that ctx is of, cannot be talked
// to, or nil.
func (c *Config) welcome(ctx context.Context, h *peerv1.Hello) error {
	if err := c.fits(h); err != nil {
		return err
	}
	if c.CheckName == nil {
		return nil
	}
	var auth credentials.AuthInfo
	if other, ok := peer.FromContext(ctx); ok {
		auth = other.AuthInfo
	}
	if err := c.CheckName(h.Name, auth); err != nil {
		return fmt.Errorf("the node that says it is %q has not proved it: %w", clip(h.Name), err)
	}
	return nil
}

// fits reports why the sender of h cannot be talked to, naming both values, or nil.
func (c *Config) fits(h *peerv1.Hello) error {
	if h == nil {
		return errNoHello
	}
	if h.Major != Major || max(h.Minor, Minor)-min(h.Minor, Minor) > 1 {
		return fmt.Errorf("protocol version: the other node speaks %d.%d, this one %d.%d; "+
			"majors must be equal and minors at most one apart", h.Major, h.Minor, Major, Minor)
	}
	if h.Placement != c.Placement {
		return fmt.Errorf("placement: the other node places keys by rules number %d, this one by %d; "+
			"all nodes of a cluster must agree", h.Placement, c.Placement)
	}
	if subtle.ConstantTimeCompare(h.Secret, c.Secret) != 1 {
		return fmt.Errorf("cluster secret: the other node's fingerprint is %s, this one's %s; "+
			"give all nodes the same secret file", abbreviate(h.Secret), abbreviate(c.Secret))
	}
	if h.Name == "" || h.Boot == "" || len(h.Name) > maxHelloText || len(h.Boot) > maxHelloText {
		return fmt.Errorf("hello: name of %d bytes and boot id of %d bytes; want 1 to %d each",
			len(h.Name), len(h.Boot), maxHelloText)
	}
	return nil
}

// abbreviate shows enough of a fingerprint to compare it by eye, and not enough to
// present it.
func abbreviate(fingerprint []byte) string {
	const shown = 4
	if len(fingerprint) == 0 {
		return "empty"
	}
	if len(fingerprint) <= 2*shown {
		return fmt.Sprintf("of %d bytes", len(fingerprint))
	}
	return fmt.Sprintf("%x…", fingerprint[:shown])
}

// clip shortens a name that nobody has vouched for yet.
func clip(name string) string { return name[:min(len(name), maxHelloText)] }
