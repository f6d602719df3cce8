package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// TokenSource returns the token of a call. It is called for each new stream and each unary call, from several goroutines.
// Its errors fail the call and must not contain the token.
type TokenSource func(ctx context.Context) (string, error)

// Token returns a source of a constant token.
func Token(token string) TokenSource {
	return func(context.Context) (string, error) { return token, nil }
}

const (
	tokenFileAge = time.Second // a token is read again after it
	maxTokenFile = 4 << 10     // bytes
)

// TokenFile returns a source that reads the token from a file, which may be replaced: it is read at most once a second. While it
// cannot be read, the last token is used.
func TokenFile(path string) TokenSource {
	var mu sync.Mutex
	var token string
	var read time.Time
	return func(context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if token != "" && time.Since(read) < tokenFileAge {
			return token, nil
		}
		fresh, err := readToken(path)
		if err != nil && token == "" {
			return "", err
		}
		if err == nil {
			token = fresh
		}
		read = time.Now()
		return token, nil
	}
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	token := strings.TrimSpace(string(data))
	switch {
	case err != nil:
		return "", err
	case token == "":
		return "", fmt.Errorf("%s: is empty; want a token", path)
	case len(data) > maxTokenFile || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		return "", fmt.Errorf("%s: has more than one token, or none", path)
	}
	return token, nil
}

var errInClear = errors.New("a token is not sent over a connection without TLS, but to a loopback address")

// Credentials returns gRPC credentials that send the tokens of source; inClear also over connections without TLS.
func Credentials(source TokenSource, inClear bool) credentials.PerRPCCredentials {
	return &tokenCredentials{source, inClear}
}

type tokenCredentials struct {
	source  TokenSource
	inClear bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *tokenCredentials) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	if !t.inClear && !encrypted(ctx) && !toLoopback(uri) {
		return nil, errInClear
	}
	token, err := t.source(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot get a token: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. GetRequestMetadata checks it instead, since gRPC has no
// exception for loopback.
func (t *tokenCredentials) RequireTransportSecurity() bool { return false }

// encrypted reports whether the call's connection is encrypted.
func encrypted(ctx context.Context) bool {
	info, ok := credentials.RequestInfoFromContext(ctx)
	return ok && info.AuthInfo != nil && credentials.CheckSecurityLevel(info.AuthInfo, credentials.PrivacyAndIntegrity) == nil
}

// toLoopback reports whether the call goes to a loopback address or to localhost.
func toLoopback(uri []string) bool {
	if len(uri) != 1 {
		return false
	}
	u, err := url.Parse(uri[0])
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return ip.IsLoopback() || u.Hostname() == "localhost"
}
