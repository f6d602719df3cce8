package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

func TestTokenStaysOffTheWire(t *testing.T) {
	secure := credentials.NewContextWithRequestInfo(t.Context(), credentials.RequestInfo{
		AuthInfo: credentials.TLSInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}})
	_, plainInfo, err := insecure.NewCredentials().ClientHandshake(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := credentials.NewContextWithRequestInfo(t.Context(), credentials.RequestInfo{AuthInfo: plainInfo})
	for _, c := range []struct {
		name    string
		ctx     context.Context
		uri     []string
		inClear bool
		shown   bool
	}{
		{"TLS", secure, []string{"https://192.0.2.1/s"}, false, true},
		{"plain text", plain, []string{"https://192.0.2.1:7460/s"}, false, false},
		{"plain text to a name", plain, []string{"https://sluice:7460/s"}, false, false},
		{"plain text to a name that begins well", plain, []string{"https://localhost.example/s"}, false, false},
		{"plain text to an unknown address", plain, nil, false, false},
		{"nothing known", t.Context(), []string{"https://192.0.2.1/s"}, false, false},
		{"loopback", plain, []string{"https://127.0.1.3:7460/s"}, false, true},
		{"loopback of IPv6", plain, []string{"https://[::1]:7460/s"}, false, true},
		{"localhost", plain, []string{"https://localhost/s"}, false, true},
		{"told to", plain, []string{"https://192.0.2.1:7460/s"}, true, true},
	} {
		md, err := Credentials(Token("t"), c.inClear).GetRequestMetadata(c.ctx, c.uri...)
		if (err == nil) != c.shown || c.shown && md["authorization"] != "Bearer t" || !c.shown && len(md) > 0 {
			t.Errorf("%s: %v, %v", c.name, md, err)
		}
	}
	failing := func(context.Context) (string, error) { return "", errors.New("no key") }
	if md, err := Credentials(failing, true).GetRequestMetadata(t.Context()); err == nil || md != nil {
		t.Errorf("of a source that fails: %v, %v", md, err)
	}
}

func TestTokenFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		source := TokenFile(path)
		if _, err := source(t.Context()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without a file: %v", err)
		}
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(tokenFileAge)
		}
		for _, c := range []struct{ text, want string }{
			{"", ""}, {"one two\n", ""}, {"\n", ""}, {strings.Repeat("x", maxTokenFile+1), ""},
			{"one\n", "one"}, {"", "one"}, {"  two", "two"}, {"two three", "two"}, {"three", "three"},
		} {
			write(c.text)
			got, err := source(t.Context())
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%.10q: %q, %v; want %q", c.text, got, err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "two") || strings.Contains(err.Error(), "xx")) {
				t.Errorf("the error has what is in the file: %v", err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(tokenFileAge)
		if got, err := source(t.Context()); got != "three" || err != nil {
			t.Errorf("once the file is gone: %q, %v", got, err)
		}
	})
}
