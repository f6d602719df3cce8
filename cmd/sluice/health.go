package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
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
describe it to sluice serve, by default 127.0.0.1:7460.

Exit codes: 0 ready, 1 not ready or no answer, 2 wrong usage.`,
		Example: "  sluice health\n  sluice health --addr 127.0.1.2 --timeout 1s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settle(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			if !cmd.Flags().Changed("addr") {
				f.addr = ownAddr(lookupEnv)
			}
			return f.health(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f.register(cmd)
	return cmd
}

// ownAddr is where the node that was given its settings by this environment answers.
func ownAddr(lookupEnv func(string) (string, bool)) string {
	host, port := "127.0.0.1", fmt.Sprint(defaultGRPCPort)
	if bind, _ := lookupEnv(envName("bind")); bind != "" {
		if ip, err := netip.ParseAddr(bind); err == nil && !ip.IsUnspecified() {
			host = bind
		}
	}
	if p, _ := lookupEnv(envName("grpc-port")); p != "" {
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
	if status != healthv1.HealthCheckResponse_SERVING {
		why := strings.Join(trailer.Get(grpcapi.TrailerReason), ", ")
		if why == "" {
			why = strings.ToLower(status.String())
		}
		return &codedError{exitDenied, fmt.Errorf("%s is not ready: %s", f.addr, why)}
	}
	_, err = fmt.Fprintln(out, "ready")
	return err
}
