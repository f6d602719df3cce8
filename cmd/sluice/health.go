package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
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

	"github.com/sluice-project/sluice/transport/grpcapi"
)

func newHealth() *cobra.Command {
	var f clientFlags
	var config string
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether a node is ready",
		Long: `Say whether a node takes traffic, and if not, why. It is for health checks of
containers and for probes that run a command.

Without --addr, it is the node of this machine as the environment and the --config file
describe it to sluice serve: bind and grpc-port, by default 127.0.0.1:7460. If they set
tls-cert too and no flag of TLS is given, /readyz is asked, at http-port: it is open to
callers without a certificate, and must show the one in that file.

Exit codes: 0 ready, 1 not ready or no answer, 2 wrong usage.`,
		Example: "  sluice health\n  sluice health --addr 127.0.1.2 --timeout 1s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settleFromEnv(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			if !cmd.Flags().Changed("addr") {
				own, err := settingsHere(config, lookupEnv)
				if err != nil {
					return usageError(err)
				}
				f.addrs = []string{own.addrHere(own.GRPCPort)}
				if own.TLS.Cert != "" && !f.tls.given() {
					f.addrs = []string{own.addrHere(own.HTTPPort)}
					return f.readyz(cmd.Context(), cmd.OutOrStdout(), own.TLS.Cert)
				}
			}
			return f.health(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&config, "config", "", "`file` with the settings of the node of this machine, as for sluice serve")
	return cmd
}

// settingsHere are those of the node that this environment, and the file if any, are for.
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

// addrHere is where a node with these settings answers those on its machine.
func (s *settings) addrHere(port uint16) string {
	host := "127.0.0.1"
	if ip, err := netip.ParseAddr(s.Bind); err == nil && !ip.IsUnspecified() {
		host = s.Bind
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// health prints ready, or returns why the node is not.
func (f *clientFlags) health(ctx context.Context, out io.Writer) error {
	var status healthv1.HealthCheckResponse_ServingStatus
	var trailer metadata.MD
	err := f.connect(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Trailer(&trailer))
		status = resp.GetStatus()
		return err
	})
	if coded, ok := errors.AsType[*codedError](err); ok && coded.code == exitNoAnswer {
		return &codedError{exitDenied, coded.err} // orchestrators know 0 and 1
	}
	if err != nil {
		return err
	}
	return f.tellReady(out, status == healthv1.HealthCheckResponse_SERVING, trailer.Get(grpcapi.TrailerReason))
}

// readyz is health by GET /readyz of a node that has TLS and shows the certificate in the file.
func (f *clientFlags) readyz(ctx context.Context, out io.Writer, cert string) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	noAnswer := func(err error) error { return &codedError{exitDenied, fmt.Errorf("%s: %w", f.node(), explain(err))} }
	leaf, err := leafOf(cert)
	if err != nil {
		return usageError(fmt.Errorf("the node's tls-cert: %w", err))
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Its names need not be this address, nor need this machine know who signed it: it is
		// the very one in the file, or nobody's.
		InsecureSkipVerify: true, // #nosec G402
		VerifyConnection: func(s tls.ConnectionState) error {
			if !s.PeerCertificates[0].Equal(leaf) {
				return errors.New("this is not the certificate in " + cert)
			}
			return nil
		},
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+f.node()+"/readyz", nil)
	if err != nil {
		return usageError(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return noAnswer(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&answer); err != nil {
		return noAnswer(fmt.Errorf("/readyz: %s: %w", resp.Status, err))
	}
	return f.tellReady(out, answer.Ready, answer.Reasons)
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

// tellReady prints ready, or returns that the node is not.
func (f *clientFlags) tellReady(out io.Writer, ready bool, reasons []string) error {
	if !ready {
		return &codedError{exitDenied, fmt.Errorf("%s is not ready: %s", f.node(), cmp.Or(strings.Join(reasons, ", "), "it does not say why"))}
	}
	_, err := fmt.Fprintln(out, "ready")
	return err
}
