// Package config has the options of a client, which two packages set: sluice, and sluicegrpc with gRPC's types.
package config

import (
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluicecluster/sluice/client/limit"
)

// Options are those of one client.
type Options struct {
	Timeout   time.Duration // 0 for what the nodes say
	Policy    limit.FailurePolicy
	DenyCache int
	Routes    int
	NoRouting bool
	NoLeases  bool
	Transport credentials.TransportCredentials
	Dial      []grpc.DialOption
	Observers []limit.Observer
	Token     TokenSource
	Plaintext bool
	Logger    *slog.Logger // nil for the default
}

// Option sets an option of a Client.
type Option func(*Options) error
