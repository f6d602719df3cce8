package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"time"

	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/internal/certs"
	"github.com/sluice-project/sluice/internal/reload"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
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
func (n *Node) openSecrets() error {
	switch path := n.config.SecretFile; {
	case n.config.Secret != nil:
		return n.takeSecrets(clusterSecrets{[][]byte{n.config.Secret}, n.config.Secret})
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
func (n *Node) takeSecrets(s clusterSecrets) error {
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
func (n *Node) gossipBySecret() bool {
	return n.config.GossipKeyring == "" && (n.config.SecretFile != "" || n.config.Secret != nil)
}

// proofKeys are the keys of hellos to other nodes.
func (n *Node) proofKeys() [][]byte { return n.inForce.Load().proofs }

// secretLabels are the values of the label files.
var secretLabels = []string{"tls", "peer_tls", "secret", "gossip_keyring", "callers"}

// secretFiles are files with keys that are followed while the node runs.
type secretFiles struct {
	label string // in metrics
	files *reload.Files
	// certificate is nil where the files are none. Its Run is that of the files, and more.
	certificate *certs.Source
}

func (f secretFiles) run(ctx context.Context) error {
	if f.certificate != nil {
		return f.certificate.Run(ctx)
	}
	return f.files.Run(ctx)
}

// openKeyring reads --gossip-keyring, or takes the keys made of the secret. What the file holds later goes to gossip, which
// must be open by the time that the files are followed. Without a secret of its own a cluster gossips in clear.
func (n *Node) openKeyring() (keys gossip.Keyring, err error) {
	path := n.config.GossipKeyring
	if path == "" {
		if n.gossipBySecret() {
			keys = n.inForce.Load().gossip
		}
		return keys, nil
	}
	files, err := reload.Open(reload.Config{
		What: "--gossip-keyring", Paths: []string{path}, Names: []string{"--gossip-keyring"}, Log: n.log,
		Take: func(contents [][]byte) error {
			read, err := gossip.ParseKeyring(contents[0])
			switch {
			case err != nil:
				return fmt.Errorf("--gossip-keyring: %s: %w", path, err)
			case n.gossip == nil:
				keys = read
				return nil
			}
			return n.gossip.SetKeyring(read)
		},
	})
	if err != nil {
		return keys, err
	}
	n.secrets = append(n.secrets, secretFiles{label: "gossip_keyring", files: files})
	return keys, nil
}

// callersEvery is how often --callers is read: a token that was taken away there opens nothing after twice that.
const callersEvery = time.Second

// openCallers makes the guard of the APIs, and reads --callers, if it is given. What the file says later comes into
// force while the node runs.
func (n *Node) openCallers() error {
	n.guard = access.NewGuard(nil, n.log, time.Now)
	path := n.config.Callers
	if path == "" {
		if ip := net.ParseIP(n.config.Bind); ip == nil || !ip.IsLoopback() {
			n.log.Warn("no --callers: whoever reaches the ports may ask and reset anything; operators' calls are answered on loopback only")
		}
		return nil
	}
	files, err := reload.Open(reload.Config{
		What: "--callers", Paths: []string{path}, Every: callersEvery, Log: n.log,
		Take: func(contents [][]byte) error {
			policy, err := access.Parse(path, contents[0])
			if err == nil {
				n.guard.SetPolicy(policy)
				n.capAccounts(nil, policy.MaxKeys())
			}
			return err
		},
	})
	if err != nil {
		return fmt.Errorf("--callers: %w", err)
	}
	n.secrets = append(n.secrets, secretFiles{label: "callers", files: files})
	return nil
}
