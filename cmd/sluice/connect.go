package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
)

// clientTLS are the flags of the commands that call nodes whose ports have TLS. Any of them turns it on.
type clientTLS struct {
	on                        bool
	ca, cert, key, serverName string
}

// clientFlagNames are the flags of the commands that call nodes: variables of theirs may be set beside a node.
var clientFlagNames = []string{"tls", "ca", "cert", "cert-key", "server-name", "token-file", "token-in-clear"}

func (c *clientTLS) register(f *pflag.FlagSet) {
	f.BoolVar(&c.on, "tls", false, "call nodes with TLS; so do the next four, each")
	f.StringVar(&c.ca, "ca", "", "`file` with the CAs of nodes' certificates, PEM (default: the system's)")
	f.StringVar(&c.cert, "cert", "", "`file` with a certificate to show, PEM")
	f.StringVar(&c.key, "cert-key", "", "`file` with the key of --cert, PEM")
	f.StringVar(&c.serverName, "server-name", "", "`name` that nodes' certificates must have (default: the host in the address)")
}

// given reports whether any of the flags was.
func (c *clientTLS) given() bool {
	return c.on || c.ca != "" || c.cert != "" || c.key != "" || c.serverName != ""
}

// config reads the files. It returns nil for plain connections. Errors begin with the flag.
func (c *clientTLS) config() (*tls.Config, error) {
	if !c.given() {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName}
	if c.ca != "" {
		text, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca: %s: there is no certificate in PEM", c.ca)
		}
	}
	switch {
	case c.cert == "" && c.key == "":
		return config, nil
	case c.cert == "":
		return nil, errors.New("--cert: missing beside --cert-key")
	case c.key == "":
		return nil, errors.New("--cert-key: missing beside --cert")
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("--cert, --cert-key: %w", err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// dialOption secures gRPC connections.
func (c *clientTLS) dialOption() (grpc.DialOption, error) {
	config, err := c.config()
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	return grpc.WithTransportCredentials(creds), err
}

// tokenVariable is the environment variable with a token for the commands that call nodes.
const tokenVariable = "SLUICE_TOKEN"

// tokenFlags name the token that a command sends.
type tokenFlags struct {
	file    string
	inClear bool
}

func (f *tokenFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "token-file", "", "`file` with the token to show; without it, the variable "+tokenVariable+" has the token, if any")
	flags.BoolVar(&f.inClear, "token-in-clear", false, "show the token without TLS to others than this machine too, where any machine on the way can read it")
}

// source returns nil where there is no token.
func (f *tokenFlags) source() sluice.TokenSource {
	if f.file != "" {
		return sluice.TokenFile(f.file)
	}
	if token, _ := lookupEnv(tokenVariable); token != "" {
		return sluice.Token(token)
	}
	return nil
}

// dialOptions are those that send the token.
func (f *tokenFlags) dialOptions() []grpc.DialOption {
	if source := f.source(); source != nil {
		return []grpc.DialOption{grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(source, f.inClear))}
	}
	return nil
}
