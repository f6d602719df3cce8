package system

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/wire"
)

// ErrNoRedis says that redis-server is not installed.
var ErrNoRedis = errors.New("redis-server is not installed")

// RateLimit starts one envoyproxy/ratelimit and the Redis that it counts in, which
// writes nothing to disk.
func (b *Binaries) RateLimit(ctx context.Context) (*System, error) {
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoRedis
	}
	s := &System{Name: "ratelimit+redis"}
	return s, s.opened(s.startRateLimit(ctx, b, redis))
}

func (s *System) startRateLimit(ctx context.Context, b *Binaries, redis string) error {
	// Redis, gRPC, HTTP, debug.
	at, err := addrs(4)
	if err != nil {
		return err
	}
	var port [4]string
	for i, a := range at {
		if _, port[i], err = net.SplitHostPort(a); err != nil {
			return err
		}
	}
	if err := s.start(process.Spec{Name: "redis", Path: redis, Args: []string{
		"--bind", host, "--port", port[0], "--save", "", "--appendonly", "no", "--dir", b.scratch,
	}}); err != nil {
		return err
	}
	if err := s.listens(ctx, at[0]); err != nil {
		return err
	}
	root, err := b.rateLimitRules()
	if err != nil {
		return err
	}
	if err := s.start(process.Spec{Name: "ratelimit", Path: b.ratelimit, Env: []string{
		"GRPC_HOST=" + host, "GRPC_PORT=" + port[1], "HOST=" + host, "PORT=" + port[2],
		"DEBUG_HOST=" + host, "DEBUG_PORT=" + port[3],
		"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + at[0], "DISABLE_STATS=true", "LOG_LEVEL=ERROR",
	}}); err != nil {
		return err
	}
	if err := s.listens(ctx, at[1]); err != nil {
		return err
	}
	if s.conns, err = wire.Dial(at[1:2], wire.RawCodec()); err != nil {
		return err
	}
	s.Target = wire.RateLimit(s.conns)
	return s.answers(ctx)
}

// rateLimitRules writes the two domains in its grammar and returns the folder to start in.
func (b *Binaries) rateLimitRules() (string, error) {
	root := filepath.Join(b.scratch, "ratelimit")
	config := filepath.Join(root, "config")
	if err := os.MkdirAll(config, 0o755); err != nil {
		return "", err
	}
	for domain, count := range map[string]string{"allowed": "1000000000", "denied": "1"} {
		text := "domain: " + domain + "\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: " + count + "}\n"
		if err := os.WriteFile(filepath.Join(config, domain+".yaml"), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return root, nil
}
