// Package sluicegrpc has what a client of package sluice needs of gRPC's types, apart from the rest, so that the API of
// package sluice does not depend on gRPC's.
package sluicegrpc

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/internal/config"
)

// WithDialOptions adds options to every connection of a client, for example an interceptor or a dialer.
func WithDialOptions(list ...grpc.DialOption) sluice.Option {
	return func(o *config.Options) error {
		o.Dial = append(o.Dial, list...)
		return nil
	}
}

// TokenCredentials returns credentials for grpc.WithPerRPCCredentials that send the tokens of source, for programs that use
// the generated client. Over connections without TLS, only loopback addresses get them, unless plaintext is set.
func TokenCredentials(source sluice.TokenSource, plaintext bool) credentials.PerRPCCredentials {
	return config.Credentials(source, plaintext)
}
