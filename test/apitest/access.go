package apitest

import (
	"crypto/rand"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/transport/access"
)

// Policy parses a file of callers, in which TOKEN is the digest of the token that it returns.
func Policy(t testing.TB, file string) (p *access.Policy, token string) {
	t.Helper()
	token, err := access.NewToken(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := access.DigestOf(token)
	p, err = access.Parse("callers.yaml", []byte(strings.ReplaceAll(file, "TOKEN", digest.String())))
	if err != nil {
		t.Fatal(err)
	}
	return p, token
}

// Guard returns a guard with a Policy, and the token.
func Guard(t testing.TB, file string) (g *access.Guard, token string) {
	t.Helper()
	p, token := Policy(t, file)
	return access.NewGuard(p, slog.New(slog.DiscardHandler), time.Now), token
}
