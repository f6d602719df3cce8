package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/internal/reload"
	"github.com/sluice-project/sluice/limiter"
)

// defaultSecret is the secret of a cluster that was given none.
// Everybody knows it, so it protects nothing.
const defaultSecret = "sluice without a secret: for trying it out, not for others' traffic"

// clusterSecrets are what --secret-file holds.
type clusterSecrets struct {
	// known are the secrets that nodes prove to know. The first makes this node's proofs and encrypts its gossip, all are accepted.
	known [][]byte
	// counters is what counter keys are made with. It is the same for as long as the cluster keeps its counters.
	counters []byte
}

// countersWord begins the line with the secret that counter keys are made with.
const countersWord = "counters"

// parseSecrets reads secrets, one per line, of at least limiter.MinSecret bytes each, and the line with countersWord, which a file with more
// than one secret must have. Empty lines and those that begin with '#' are skipped. Errors name the line and never show it.
func parseSecrets(text []byte) (s clusterSecrets, err error) {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		word, rest, marked := bytes.Cut(line, []byte(" "))
		marked = marked && string(word) == countersWord
		if marked {
			line = bytes.TrimSpace(rest)
		}
		switch {
		case len(line) < limiter.MinSecret:
			return s, fmt.Errorf("line %d holds a secret of %d bytes, want at least %d; one secret a line (head -c 32 /dev/urandom | base64)",
				number, len(line), limiter.MinSecret)
		case marked && s.counters != nil:
			return s, fmt.Errorf("line %d is a second line `%s`", number, countersWord)
		case marked:
			s.counters = bytes.Clone(line)
			continue
		case slices.ContainsFunc(s.known, func(other []byte) bool { return bytes.Equal(other, line) }):
			return s, fmt.Errorf("line %d repeats a secret", number)
		case len(s.known) == gossip.MaxKeys:
			return s, fmt.Errorf("line %d: more than %d secrets", number, gossip.MaxKeys)
		}
		s.known = append(s.known, bytes.Clone(line))
	}
	switch {
	case len(s.known) == 0:
		return s, errors.New("it has no secret")
	case s.counters != nil:
	case len(s.known) > 1:
		return s, fmt.Errorf("it has %d secrets and no line `%s`: add one with the secret that the cluster began with, "+
			"so that counters keep their keys while the others are exchanged", len(s.known), countersWord)
	default:
		s.counters = s.known[0]
	}
	return s, nil
}

// derived are the keys made of clusterSecrets.
type derived struct {
	proofs [][]byte
	gossip gossip.Keyring
}

func (s clusterSecrets) derive() (d derived, err error) {
	var keys [][]byte
	for _, secret := range s.known {
		proof, err := limiter.ProofKey(secret)
		if err != nil {
			return d, err
		}
		key, err := limiter.GossipKey(secret)
		if err != nil {
			return d, err
		}
		d.proofs, keys = append(d.proofs, proof), append(keys, key)
	}
	d.gossip, err = gossip.NewKeyring(keys...)
	return d, err
}

// openSecrets reads --secret-file, or takes what stands for it. What the file holds later goes into force, in proofs and in gossip.
func (n *node) openSecrets() error {
	switch path := n.settings.secretFile; {
	case n.settings.secret != nil:
		return n.takeSecrets(clusterSecrets{[][]byte{n.settings.secret}, n.settings.secret})
	case path == "":
		n.log.Warn("no --secret-file: this cluster uses the secret that everybody knows; whoever reaches its ports can join it")
		return n.takeSecrets(clusterSecrets{[][]byte{[]byte(defaultSecret)}, []byte(defaultSecret)})
	default:
		files, err := reload.Open(reload.Config{
			What: "--secret-file", Paths: []string{path}, Names: []string{"--secret-file"}, Log: n.log,
			Take: func(contents [][]byte) error {
				read, err := parseSecrets(contents[0])
				if err == nil {
					err = n.takeSecrets(read)
				}
				if err != nil {
					return fmt.Errorf("--secret-file: %s: %w", path, err)
				}
				return nil
			},
		})
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w (make one with: head -c 32 /dev/urandom | base64 > %s)", err, path)
		}
		if err != nil {
			return err
		}
		n.secrets = append(n.secrets, secretFiles{label: "secret", files: files})
		return nil
	}
}

// takeSecrets puts s into force.
func (n *node) takeSecrets(s clusterSecrets) error {
	if n.counters == nil {
		n.counters = s.counters
	} else if !bytes.Equal(s.counters, n.counters) {
		return fmt.Errorf("counter keys would be made with another secret than until now, and every counter begin anew: "+
			"keep the line `%s` with the secret that this cluster began with; to change it, stop all nodes", countersWord)
	}
	d, err := s.derive()
	if err != nil {
		return err
	}
	if n.gossip != nil && n.gossipBySecret() {
		if err := n.gossip.SetKeyring(d.gossip); err != nil {
			return err
		}
	}
	n.inForce.Store(&d)
	return nil
}

// gossipBySecret reports whether gossip is encrypted with keys made of the secret: there is one, and no keyring.
func (n *node) gossipBySecret() bool {
	return n.settings.gossipKeyring == "" && (n.settings.secretFile != "" || n.settings.secret != nil)
}

// proofKeys are the keys of hellos to other nodes.
func (n *node) proofKeys() [][]byte { return n.inForce.Load().proofs }
