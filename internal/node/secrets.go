package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/cluster/gossip"
	"github.com/sluicecluster/sluice/internal/certs"
	"github.com/sluicecluster/sluice/internal/reload"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
)

// defaultSecret is the secret of a cluster without --secret-file. It is public, so it protects nothing.
const defaultSecret = "sluice without a secret: for trying it out, not for others' traffic"

// clusterSecrets are the contents of --secret-file.
type clusterSecrets struct {
	// known are the secrets of proofs and gossip. This node uses the first one and accepts all.
	known [][]byte
	// counters is the secret of counter keys. It must not change while the cluster keeps its counters.
	counters []byte
}

// countersWord begins the line with the secret of counter keys.
const countersWord = "counters"

// parseSecrets reads secrets, one per line, of at least limiter.MinSecret bytes each, and the line with countersWord, which must
// be there with more than one secret. It skips empty lines and those that begin with '#'. Errors name the line, never its text.
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

// derivedKeys are the keys made of clusterSecrets.
type derivedKeys struct {
	proofs [][]byte
	gossip gossip.Keyring
}

func (s clusterSecrets) derive() (d derivedKeys, err error) {
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

// openSecrets reads and follows --secret-file, or takes the secret in its place.
func (n *Node) openSecrets() error {
	path, secret := n.config.SecretFile, n.config.Secret
	if secret == nil && path == "" {
		if n.config.loopback() {
			n.log.Warn("no --secret-file: this cluster uses a public secret; any process that reaches its ports can join it")
		}
		secret = []byte(defaultSecret)
	}
	if secret != nil {
		return n.takeSecrets(clusterSecrets{[][]byte{secret}, secret})
	}
	err := n.follow("secret", "--secret-file", path, 0, func(text []byte) error {
		s, err := parseSecrets(text)
		if err == nil {
			err = n.takeSecrets(s)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w (make one with: head -c 32 /dev/urandom | base64 > %s)", err, path)
	}
	return err
}

// follow reads the file of a flag and has take put its contents into force, now and when they change while the node runs. Errors
// of take name the file.
func (n *Node) follow(label, flag, path string, every time.Duration, take func(text []byte) error) error {
	files, err := reload.Open(reload.Config{
		What: flag, Paths: []string{path}, Names: []string{flag}, Every: every, Log: n.log,
		Take: func(contents [][]byte) error {
			if err := take(contents[0]); err != nil {
				return fmt.Errorf("%s: %w", flag, err)
			}
			return nil
		},
	})
	if err == nil {
		n.secrets = append(n.secrets, secretFiles{label: label, files: files})
	}
	return err
}

// takeSecrets puts s into force.
func (n *Node) takeSecrets(s clusterSecrets) error {
	if n.counters == nil {
		n.counters = s.counters
	} else if !bytes.Equal(s.counters, n.counters) {
		return fmt.Errorf("the secret of counter keys would change, and every counter begin anew: "+
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
	n.secretKeys.Store(&d)
	return nil
}

// gossipBySecret reports whether gossip is encrypted with keys made of the secret.
func (n *Node) gossipBySecret() bool {
	return n.config.GossipKeyring == "" && (n.config.SecretFile != "" || n.config.Secret != nil)
}

// proofKeys are the keys of hellos to other nodes.
func (n *Node) proofKeys() [][]byte { return n.secretKeys.Load().proofs }

// secretFiles are files with certificates, keys or callers that are followed while the node runs.
type secretFiles struct {
	label       string // in metrics
	files       *reload.Files
	certificate *certs.Source // nil for other files; its Run runs files too
}

func (f secretFiles) run(ctx context.Context) error {
	if f.certificate != nil {
		return f.certificate.Run(ctx)
	}
	return f.files.Run(ctx)
}

// openKeyring reads and follows --gossip-keyring, or takes the keys made of the secret. Without either a cluster gossips in
// clear. Gossip must be open when the file changes.
func (n *Node) openKeyring() (keys gossip.Keyring, err error) {
	if n.gossipBySecret() {
		return n.secretKeys.Load().gossip, nil
	}
	if n.config.GossipKeyring == "" {
		return keys, nil
	}
	err = n.follow("gossip_keyring", "--gossip-keyring", n.config.GossipKeyring, 0, func(text []byte) error {
		read, err := gossip.ParseKeyring(text)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", n.config.GossipKeyring, err)
		case n.gossip != nil:
			return n.gossip.SetKeyring(read)
		}
		keys = read
		return nil
	})
	return keys, err
}

// callersEvery is the time between two readings of --callers: a token that was removed there is rejected after twice that.
const callersEvery = time.Second

// openCallers makes the guard of the APIs, and reads and follows --callers.
func (n *Node) openCallers() error {
	n.guard = access.NewGuard(nil, n.log, time.Now)
	path := n.config.Callers
	if path == "" {
		return nil
	}
	return n.follow("callers", "--callers", path, callersEvery, func(text []byte) error {
		policy, err := access.Parse(path, text)
		if err == nil {
			n.guard.SetPolicy(policy)
			n.capAccounts(nil, policy.MaxKeys())
		}
		return err
	})
}
