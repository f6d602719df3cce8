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
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-project/sluice/transport/grpcapi"
)

func newHealth() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether a node is ready",
		Long: `Say whether a node takes traffic, and if not, why. It is for health checks of
containers and for probes that run a command.

Without --addr, it is the node of this machine as SLUICE_BIND and SLUICE_GRPC_PORT
describe it to sluice serve, by default 127.0.0.1:7460. If SLUICE_TLS_CERT is set too and
no flag of TLS is given, /readyz is asked, at SLUICE_HTTP_PORT: it is open to callers
without a certificate, and must show the one in that file.

Exit codes: 0 ready, 1 not ready or no answer, 2 wrong usage.`,
		Example: "  sluice health\n  sluice health --addr 127.0.1.2 --timeout 1s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settle(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			if !cmd.Flags().Changed("addr") {
				f.addr = ownAddr(lookupEnv, "grpc-port", defaultGRPCPort)
				if cert, _ := lookupEnv(envName("tls-cert")); cert != "" && !f.tls.given() {
					f.addr = ownAddr(lookupEnv, "http-port", defaultHTTPPort)
					return f.readyz(cmd.Context(), cmd.OutOrStdout(), cert)
				}
			}
			return f.health(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f.register(cmd)
	return cmd
}

// ownAddr is where the node that was given its settings by this environment answers, at the port
// that the flag is for.
func ownAddr(lookupEnv func(string) (string, bool), flag string, usual int) string {
	host, port := "127.0.0.1", strconv.Itoa(usual)
	if bind, _ := lookupEnv(envName("bind")); bind != "" {
		if ip, err := netip.ParseAddr(bind); err == nil && !ip.IsUnspecified() {
			host = bind
		}
	}
	if p, _ := lookupEnv(envName(flag)); p != "" {
		port = p
	}
	return net.JoinHostPort(host, port)
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
	noAnswer := func(err error) error { return &codedError{exitDenied, fmt.Errorf("%s: %w", f.addr, err)} }
	leaf, err := leafOf(cert)
	if err != nil {
		return usageError(fmt.Errorf("environment variable %s: %w", envName("tls-cert"), err))
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Its names need not be this address, nor need this machine know who signed it: it is
		// the very one in the file, or nobody's.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if !s.PeerCertificates[0].Equal(leaf) {
				return errors.New("this is not the certificate in " + cert)
			}
			return nil
		},
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+f.addr+"/readyz", nil)
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
		return &codedError{exitDenied, fmt.Errorf("%s is not ready: %s", f.addr, cmp.Or(strings.Join(reasons, ", "), "it does not say why"))}
	}
	_, err := fmt.Fprintln(out, "ready")
	return err
}
