package sluice

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicecluster/sluice/client/internal/config"
	"github.com/sluicecluster/sluice/client/limit"
)

// Option sets an option of a Client. Package sluicegrpc has those with gRPC's types.
type Option = config.Option

// TokenSource returns the token of a call. It is called for each new stream and each unary call, from several goroutines.
// Its errors fail the call and must not contain the token.
type TokenSource = config.TokenSource

// Token returns a source of a constant token.
func Token(token string) TokenSource { return config.Token(token) }

// TokenFile returns a source that reads the token from a file, which may be replaced: it is read at most once a second.
// While it cannot be read, the last token is used.
func TokenFile(path string) TokenSource { return config.TokenFile(path) }

func newOptions(list []Option) (config.Options, error) {
	o := config.Options{Policy: limit.FailByRule(limit.FailOpen()), DenyCache: 10_000, Routes: 65_536, Transport: insecure.NewCredentials()}
	for _, f := range list {
		if err := f(&o); err != nil {
			return o, fmt.Errorf("sluice: %w", err)
		}
	}
	first := []grpc.DialOption{
		grpc.WithTransportCredentials(o.Transport),
		// The cluster's rules bound the size of responses; nodes have no cap either.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
		// A node that comes back is found soon: the circuit breaker says when to try.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: openTimeout,
		}),
	}
	if o.Token != nil {
		first = append(first, grpc.WithPerRPCCredentials(config.Credentials(o.Token, o.Plaintext)))
	}
	o.Dial = append(first, o.Dial...)
	return o, nil
}

// WithTimeout bounds the time of a call with all its retries, after which the FailurePolicy answers. Above 0. The default is
// the nodes' own --check-timeout, which they tell, plus a round trip and 300 ms; 3 s until a node has told.
// Nodes need their --check-timeout when a key's owner has crashed, so less makes an outage of every takeover.
func WithTimeout(d time.Duration) Option {
	return func(o *config.Options) error {
		if d <= 0 {
			return fmt.Errorf("WithTimeout: %v; want a time above 0", d)
		}
		o.Timeout = d
		return nil
	}
}

// WithFailurePolicy sets the policy when no node answers; FailByRule(FailOpen()) by default. Key.OnFailure sets that of one
// Key.
func WithFailurePolicy(p FailurePolicy) Option {
	return func(o *config.Options) error {
		if err := p.Validate(); err != nil {
			return fmt.Errorf("WithFailurePolicy: %w", err)
		}
		o.Policy = p
		return nil
	}
}

// WithDenyCache sets how many denials are remembered, 10,000 by default; 0 remembers none.
func WithDenyCache(entries int) Option {
	return func(o *config.Options) error {
		if entries < 0 {
			return fmt.Errorf("WithDenyCache: %d; want 0 or more entries", entries)
		}
		o.DenyCache = entries
		return nil
	}
}

// WithRouteCache sets of how many counters the owner is remembered, 65,536 by default.
func WithRouteCache(entries int) Option {
	return func(o *config.Options) error {
		if entries < 1 {
			return fmt.Errorf("WithRouteCache: %d; want 1 entry or more", entries)
		}
		o.Routes = entries
		return nil
	}
}

// WithoutRouting uses only the addresses of the target, in turn: for clients that cannot reach the nodes' own addresses.
func WithoutRouting() Option {
	return func(o *config.Options) error { o.NoRouting = true; return nil }
}

// WithoutLeases has the nodes decide every check. By default the client leases units of keys that are asked 250 times a second or
// more, and decides by itself with these: exactly, but for 30 ms, or four round trips, others may be denied units that it has not
// spent. Nodes do not see what it decides; Stats does.
func WithoutLeases() Option {
	return func(o *config.Options) error { o.NoLeases = true; return nil }
}

// WithTLS encrypts connections; they are not encrypted by default. The client connects to nodes by IP address, so set a
// ServerName that the certificates of all nodes have.
func WithTLS(c *tls.Config) Option {
	return func(o *config.Options) error {
		if c == nil {
			return errors.New("WithTLS: nil; want a *tls.Config, which may be empty")
		}
		o.Transport = credentials.NewTLS(c) // a program that does not call WithTLS has no TLS linked
		return nil
	}
}

// WithToken sends the tokens of source to the nodes. Over connections without TLS, only loopback addresses get them, unless
// WithPlaintextToken is set.
func WithToken(source TokenSource) Option {
	return func(o *config.Options) error {
		if source == nil {
			return errors.New("WithToken: nil")
		}
		o.Token = source
		return nil
	}
}

// WithPlaintextToken sends the token of WithToken over connections without TLS too, where it can be read: for networks that
// are encrypted otherwise.
func WithPlaintextToken() Option {
	return func(o *config.Options) error { o.Plaintext = true; return nil }
}

// WithObserver adds an Observer.
func WithObserver(observer Observer) Option {
	return func(o *config.Options) error {
		if observer == nil {
			return errors.New("WithObserver: nil")
		}
		o.Observers = append(o.Observers, observer)
		return nil
	}
}

// WithLogger sets where the client says that a FailurePolicy decides, that nodes decide again, and that no rule matches;
// slog.Default() by default.
func WithLogger(l *slog.Logger) Option {
	return func(o *config.Options) error {
		if l == nil {
			return errors.New("WithLogger: nil; want a *slog.Logger, for example slog.New(slog.DiscardHandler)")
		}
		o.Logger = l
		return nil
	}
}
