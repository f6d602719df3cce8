package peer

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sluicecluster/sluice/internal/inflow"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// Version of the protocol. Nodes of equal majors and of minors at most one apart can communicate; the higher minor then does
// without its additions.
const (
	Major = 3
	Minor = 1
)

const (
	maxHelloText = 256 // bytes of a name or boot ID in a Hello
	nonceSize    = 32  // bytes of its nonce
)

var (
	errNoHello     = errors.New("the first frame is not a hello: is this a sluice peer?")
	errNoProof     = errors.New("no proof came after the hello")
	errHungUp      = errors.New("the peer has hung up")
	errSecondHello = errors.New("a second hello")
	errSelf        = errors.New("hello: it has this process's own boot id")
	// errSecret: the sender of a proof does not know the secret of this node.
	errSecret = errors.New("secret not accepted: the two nodes have different secrets; " +
		"give all nodes the same --secret-file, and while it is changed let all know the new secret before any node puts it first")
	// errCounters: the sender knows the secret, but makes counter keys with another one.
	errCounters = errors.New("counter keys: the two nodes make them with different secrets; " +
		"give all nodes the same line `counters` in --secret-file")
)

// hello returns this node's hello, with a fresh nonce.
func (c *Config) hello() *peerv1.Hello {
	h := &peerv1.Hello{
		Major: Major, Minor: Minor,
		Name: c.Name, Boot: c.Boot,
		Placement: c.Placement, Nonce: make([]byte, nonceSize), Region: c.Region,
	}
	_, _ = rand.Read(h.Nonce) // never fails
	return h
}

// checkHello returns why the sender of h, at the other end of the connection of ctx, is rejected, or nil. It has yet to prove that
// it knows the secret.
func (c *Config) checkHello(ctx context.Context, h *peerv1.Hello) error {
	if err := c.compatible(h); err != nil {
		return err
	}
	if c.CheckName == nil {
		return nil
	}
	var auth credentials.AuthInfo
	if other, ok := peer.FromContext(ctx); ok {
		auth = inflow.AuthInfo(other.AuthInfo)
	}
	if err := c.CheckName(h.Name, h.Region, auth); err != nil {
		return fmt.Errorf("the node that says it is %q has not proved it: %w", clip(h.Name), err)
	}
	return nil
}

// compatible returns why a node with hello h is rejected, naming both values, or nil.
func (c *Config) compatible(h *peerv1.Hello) error {
	switch {
	case h == nil:
		return errNoHello
	case h.Major != Major || max(h.Minor, Minor)-min(h.Minor, Minor) > 1:
		return fmt.Errorf("protocol version: the other node speaks %d.%d, this one %d.%d; "+
			"majors must be equal and minors at most one apart", h.Major, h.Minor, Major, Minor)
	case h.Placement != c.Placement:
		return fmt.Errorf("placement: the other node places keys by rules number %d, this one by %d; "+
			"all nodes of a cluster must agree", h.Placement, c.Placement)
	case h.Name == "" || h.Boot == "" || len(h.Name) > maxHelloText || len(h.Boot) > maxHelloText:
		return fmt.Errorf("hello: name of %d bytes and boot id of %d bytes; want 1 to %d each",
			len(h.Name), len(h.Boot), maxHelloText)
	case len(h.Region) > maxHelloText:
		return fmt.Errorf("hello: region of %d bytes; want at most %d", len(h.Region), maxHelloText)
	case len(h.Nonce) != nonceSize:
		return fmt.Errorf("hello: nonce of %d bytes; want %d", len(h.Nonce), nonceSize)
	case h.Boot == c.Boot:
		// A process does not dial itself: its own hello and proofs are being sent back to it.
		return errSelf
	}
	return nil
}

// role is an end of a connection. Every proof includes it, so that none is valid for the other end.
type role byte

const (
	dialer   role = 1
	accepter role = 2
)

// transcript has both hellos, which the proofs are about.
type transcript struct{ dialer, accepter *peerv1.Hello }

// prove returns the proof of end r, under the first key.
func (c *Config) prove(r role, t transcript) *peerv1.Proof {
	return t.proof(c.ProofKeys()[0], r, c.CountersTag)
}

// verify returns why p is no valid proof of end r under any of the keys, or nil.
func (c *Config) verify(r role, t transcript, p *peerv1.Proof) error {
	err := errSecret
	for _, key := range c.ProofKeys() {
		want := t.proof(key, r, c.CountersTag)
		if !hmac.Equal(p.GetSecret(), want.Secret) {
			continue
		}
		if hmac.Equal(p.GetCounters(), want.Counters) {
			return nil
		}
		err = errCounters
	}
	return err
}

// proof makes the two sums of a Proof.
func (t transcript) proof(key []byte, r role, countersTag []byte) *peerv1.Proof {
	said := append(make([]byte, 0, 256), "sluice hello v2"...)
	said = append(said, byte(r))
	for _, h := range []*peerv1.Hello{t.dialer, t.accepter} {
		for _, n := range []uint32{h.Major, h.Minor, h.Placement} {
			said = binary.LittleEndian.AppendUint32(said, n)
		}
		texts := []string{h.Name, h.Boot, string(h.Nonce)}
		if h.Region != "" { // a node of minor 0, which has none, cannot be linked to those that have
			texts = append(texts, h.Region)
		}
		for _, text := range texts {
			said = binary.LittleEndian.AppendUint32(said, uint32(len(text)))
			said = append(said, text...)
		}
	}
	sum := func(kind byte, more []byte) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte{kind})
		m.Write(said)
		m.Write(more)
		return m.Sum(nil)
	}
	return &peerv1.Proof{Secret: sum(1, nil), Counters: sum(2, countersTag)}
}

// clip shortens a name that is not authenticated yet.
func clip(name string) string { return name[:min(len(name), maxHelloText)] }
