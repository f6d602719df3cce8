package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicecluster/sluice/cluster/gossip"
	"github.com/sluicecluster/sluice/internal/certs"
	"github.com/sluicecluster/sluice/internal/certs/mint"
)

// sharedName is a name that all nodes' certificates for clients have, so that a client can verify any node by one name.
const sharedName = "sluice"

// peerSuffix stands behind a node's name in the names of its files for other nodes.
const peerSuffix = "-peer"

// certFlags are the flags of `sluice cert`.
type certFlags struct {
	dir      string
	names    []string
	hosts    []string
	peerName string
	days     int
}

func newCert() *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use:   "cert --dir DIR --names NAME,...",
		Short: "Make certificates and keys to try encryption with",
		Long: `Make the files that a cluster needs for TLS and for encrypted gossip: a CA, two certificates for
each node, one for clients, a gossip keyring and a secret. It then prints the flags to
use them with. Nothing that exists is overwritten.

NAME.crt is for a node's clients: all nodes' have the names sluice and localhost.
NAME-peer.crt is for other nodes, and has that node's name alone.

It is for trying things out. The CA's key lies beside the certificates, and with it anyone
can make certificates of any node or client; nothing is renewed.`,
		Example: "  sluice cert --dir certs --names n1,n2,n3 --hosts 127.0.1.1,127.0.1.2,127.0.1.3\n" +
			"  sluice cert --dir certs --names sluice-0,sluice-1,sluice-2 --peer-tls-name '{name}.sluice.default.svc'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return usageError(err)
			}
			if err := f.run(time.Now()); err != nil {
				return &codedError{exitDenied, err}
			}
			return f.explain(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.dir, "dir", "", "`directory` to write to; made if it is not there (required)")
	flags.StringSliceVar(&f.names, "names", nil, "nodes' `names`, as in --name of sluice serve (required)")
	flags.StringSliceVar(&f.hosts, "hosts", nil, "further DNS `names` and IP addresses that clients reach nodes at; localhost, 127.0.0.1 and ::1 are always among them")
	flags.StringVar(&f.peerName, "peer-tls-name", "{name}", "DNS `name` of a node, as in sluice serve")
	flags.IntVar(&f.days, "days", 365, "`days` until the certificates end, 1 to 3650")
	return cmd
}

func (f *certFlags) validate() error {
	var errs []error
	if f.dir == "" {
		errs = append(errs, errors.New("--dir: required"))
	}
	if len(f.names) == 0 {
		errs = append(errs, errors.New("--names: required"))
	}
	seen := map[string]bool{}
	for _, name := range f.names {
		if err := gossip.ValidateName(name); err != nil {
			errs = append(errs, fmt.Errorf("--names: %w", err))
		}
		// ca and client are files of their own.
		if seen[name] || name == "ca" || name == "client" {
			errs = append(errs, fmt.Errorf("--names: %q is given twice, or is ca or client", name))
		}
		seen[name] = true
	}
	for _, name := range f.names {
		if seen[name+peerSuffix] {
			errs = append(errs, fmt.Errorf("--names: %q: its files would be those of %q for other nodes", name+peerSuffix, name))
		}
	}
	for _, host := range f.hosts {
		if host == "" || strings.ContainsAny(host, " /:") && net.ParseIP(host) == nil {
			errs = append(errs, fmt.Errorf("--hosts: %q is neither a DNS name nor an IP address", host))
		}
	}
	if strings.Contains(f.peerName, "{region}") {
		errs = append(errs, errors.New("--peer-tls-name: write the name of the region in place of {region}: a certificate is for one"))
	}
	if f.peerName == "" {
		errs = append(errs, errors.New("--peer-tls-name: is empty"))
	}
	if f.days < 1 || f.days > 3650 {
		errs = append(errs, fmt.Errorf("--days: %d; want 1 to 3650", f.days))
	}
	return errors.Join(errs...)
}

// run makes everything before it writes the first file.
func (f *certFlags) run(now time.Time) error {
	life := time.Duration(f.days) * 24 * time.Hour
	ca, err := mint.NewCA("sluice, for trying it out", now, life)
	if err != nil {
		return err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return err
	}
	type file struct {
		name string
		text []byte
		mode os.FileMode
	}
	files := []file{{"ca.crt", ca.PEM, 0o644}, {"ca.key", key, 0o600}}
	leaves := []mint.Leaf{{CommonName: "client", Hosts: []string{"client"}, Client: true}}
	for _, name := range f.names {
		hosts := []string{name}
		for _, host := range append([]string{sharedName, "localhost", "127.0.0.1", "::1"}, f.hosts...) {
			if !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
		leaves = append(leaves,
			mint.Leaf{CommonName: name, Hosts: hosts, Server: true}, // not a client's: another node would accept every name in it
			mint.Leaf{CommonName: name + peerSuffix, Hosts: []string{certs.NameOf(f.peerName, name, "")}, Server: true, Client: true})
	}
	for _, leaf := range leaves {
		leaf.From, leaf.Until = now.Add(-time.Hour), now.Add(life)
		pair, err := ca.Issue(leaf)
		if err != nil {
			return err
		}
		files = append(files, file{leaf.CommonName + ".crt", pair.Cert, 0o644}, file{leaf.CommonName + ".key", pair.Key, 0o600})
	}
	files = append(files, file{"gossip.keyring", randomLine(), 0o600}, file{"secret", randomLine(), 0o600})

	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	for _, one := range files {
		if _, err := os.Lstat(filepath.Join(f.dir, one.name)); err == nil {
			return fmt.Errorf("--dir: %s is there already, and nothing is overwritten; give a directory without it", filepath.Join(f.dir, one.name))
		}
	}
	for _, one := range files {
		if err := writeNew(filepath.Join(f.dir, one.name), one.text, one.mode); err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
	}
	return nil
}

// randomLine is 32 random bytes as base64.
func randomLine() []byte {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return []byte(base64.StdEncoding.EncodeToString(key[:]) + "\n")
}

// writeNew makes a file that must not exist.
func writeNew(path string, text []byte, mode os.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

// explain prints the flags to use the files with.
func (f *certFlags) explain(out io.Writer) error {
	var b strings.Builder
	in := func(name string) string { return quoted(filepath.Join(f.dir, name)) }
	fmt.Fprintf(&b, "# %s: a CA, %d nodes, a client, a gossip keyring and a secret, until %s.\n",
		f.dir, len(f.names), time.Now().AddDate(0, 0, f.days).Format(time.DateOnly))
	for _, name := range f.names {
		peerName := ""
		if f.peerName != "{name}" {
			peerName = " --peer-tls-name " + quoted(f.peerName)
		}
		fmt.Fprintf(&b, "\nsluice serve --name %s --secret-file %s \\\n"+
			"  --tls-cert %s --tls-key %s --tls-client-ca %s --tls-client-auth require \\\n"+
			"  --peer-tls-cert %s --peer-tls-key %s --peer-tls-ca %s%s \\\n"+
			"  --gossip-keyring %s\n",
			name, in("secret"), in(name+".crt"), in(name+".key"), in("ca.crt"),
			in(name+peerSuffix+".crt"), in(name+peerSuffix+".key"), in("ca.crt"), peerName, in("gossip.keyring"))
	}
	fmt.Fprintf(&b, "\n# Beside your --bind, --join, --bootstrap-expect and --rules. Callers then use:\n"+
		"\nsluice members --ca %s --cert %s --cert-key %s --server-name %s\n", in("ca.crt"), in("client.crt"), in("client.key"), sharedName)
	_, err := io.WriteString(out, b.String())
	return err
}

// quoted is a word of a shell.
func quoted(word string) string {
	if strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@%+=", r)
	}) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}
