package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/sluicecluster/sluice/transport/grpcapi"
)

func newHealth() *cobra.Command {
	var f clientFlags
	var config string
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Report whether a node is ready",
		Long: `Report whether a node is ready for traffic, and if not, why. It is for health checks of
containers and for probes that run a command.

Without --addr, it is the node of this machine as the environment and the --config file
describe it to sluice serve: bind and grpc-port, by default 127.0.0.1:7460. If they set
tls-cert too and no flag of TLS is given, /readyz is asked, at http-port: it is open to
callers without a certificate, and must show the one in that file.

Exit codes: 0 ready, 1 not ready or no answer, 2 wrong usage.`,
		Example: "  sluice health\n  sluice health --addr 127.0.1.2 --timeout 1s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cert := ""
			if !cmd.Flags().Changed("addr") {
				own, err := settingsHere(config, lookupEnv)
				if err != nil {
					return usageError(err)
				}
				port := own.GRPCPort
				if own.TLS.Cert != "" && !f.tls.given() {
					cert, port = own.TLS.Cert, own.HTTPPort
				}
				f.addrs = []string{own.addrHere(port)}
			}
			err := f.health(cmd.Context(), cmd.OutOrStdout(), cert)
			if coded, ok := errors.AsType[*codedError](err); ok && coded.code == exitNoAnswer {
				coded.code = exitDenied // orchestrators know 0 and 1
			}
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&config, "config", "", "`file` with the settings of the node of this machine, as for sluice serve")
	return cmd
}

// settingsHere returns the settings of the node that this environment, and the file if any, describe.
func settingsHere(config string, lookupEnv func(string) (string, bool)) (settings, error) {
	var s settings
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.register(flags)
	if config != "" {
		if err := flags.Set("config", config); err != nil {
			return s, err
		}
	}
	return s, settle(flags, lookupEnv)
}

// addrHere returns the address at which clients on the same machine reach a node with these settings.
func (s *settings) addrHere(port uint16) string {
	host := "127.0.0.1"
	if ip, err := netip.ParseAddr(s.Bind); err == nil && !ip.IsUnspecified() {
		host = s.Bind
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// health prints ready, or returns why the node is not. It asks over gRPC or, where cert names the file of the node's
// certificate, by GET /readyz.
func (f *clientFlags) health(ctx context.Context, out io.Writer, cert string) (err error) {
	var ready bool
	var reasons []string
	if cert != "" {
		ready, reasons, err = f.readyz(ctx, cert)
	} else {
		err = f.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
			var trailer metadata.MD
			resp, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Trailer(&trailer))
			ready, reasons = resp.GetStatus() == healthv1.HealthCheckResponse_SERVING, trailer.Get(grpcapi.TrailerReason)
			return err
		})
	}
	if err != nil {
		return err
	}
	if !ready {
		return &codedError{exitDenied, fmt.Errorf("%s is not ready: %s", f.node(), cmp.Or(strings.Join(reasons, ", "), "it does not say why"))}
	}
	_, err = fmt.Fprintln(out, "ready")
	return err
}

// readyz asks GET /readyz of a node that has TLS and shows the certificate in the file.
func (f *clientFlags) readyz(ctx context.Context, cert string) (ready bool, reasons []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	leaf, err := leafOf(cert)
	if err != nil {
		return false, nil, usageError(fmt.Errorf("the node's tls-cert: %w", err))
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Its names need not include this address, and its CA need not be known here: VerifyConnection compares it with the file.
		InsecureSkipVerify: true, // #nosec G402
		VerifyConnection: func(s tls.ConnectionState) error {
			if !s.PeerCertificates[0].Equal(leaf) {
				return errors.New("this is not the certificate in " + cert)
			}
			return nil
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+f.node()+"/readyz", nil)
	if err != nil {
		return false, nil, usageError(err)
	}
	var answer struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons"`
	}
	if _, err := askJSON(transport, req, &answer); err != nil {
		return false, nil, noAnswer(f.node(), err)
	}
	return answer.Ready, answer.Reasons, nil
}

// leafOf returns the first certificate in a file.
func leafOf(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, fmt.Errorf("%s: there is no certificate in PEM", file)
}
