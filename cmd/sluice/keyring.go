package main

import (
	"context"
	"fmt"

	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/internal/certs"
	"github.com/sluice-project/sluice/internal/reload"
)

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
func (n *node) openKeyring() (keys gossip.Keyring, err error) {
	path := n.settings.gossipKeyring
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
