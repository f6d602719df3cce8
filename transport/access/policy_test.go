package access

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/sluicecluster/sluice/test/seeded"
)

// token returns a token of one repeated byte, and its digest.
func token(t testing.TB, b byte) (string, Digest) {
	t.Helper()
	text, err := NewToken(bytes.NewReader(bytes.Repeat([]byte{b}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	d, ok := DigestOf(text)
	if !ok {
		t.Fatalf("%q is no token", text)
	}
	return text, d
}

func parse(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Parse("callers.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWhoMayDoWhat(t *testing.T) {
	_, shop := token(t, 1)
	_, ops := token(t, 2)
	p := parse(t, `
callers:
  - name: shop
    tokens: [`+shop.String()+`]
    certificates: ["dns:shop.example", "uri:spiffe://example/shop"]
    grants:
      - {domains: [shop, "shop-*"], verbs: [check, refund]}
      - {domains: ["shop-eu-*"], verbs: [reset]}
      - {domains: [shop-eu-1], verbs: [charge]}
  - name: ops
    tokens: [`+ops.String()+`]
    certificates: ["cn:ops"]
    grants:
      - {domains: ["*"], verbs: [read, admin]}
anonymous:
  - {domains: [public], verbs: [check]}
`)
	if got := p.Callers(); got != 2 {
		t.Errorf("%d callers, want 2", got)
	}
	callers := map[string]*Caller{"shop": p.tokens[shop], "ops": p.tokens[ops], "": p.anonymous}
	for _, c := range []struct {
		caller, domain, want string
	}{
		{"shop", "shop", "check, refund"},
		{"shop", "shops", ""},
		{"shop", "shop-", "check, refund"},
		{"shop", "shop-eu", "check, refund"},
		{"shop", "shop-eu-", "check, refund, reset"},
		{"shop", "shop-eu-1", "check, charge, refund, reset"},
		{"shop", "shop-eu-12", "check, refund, reset"},
		{"shop", "public", "check"},
		{"shop", "", ""},
		{"shop", "bank", ""},
		{"shop", "Shop", ""},
		{"ops", "shop", "read, admin"},
		{"ops", "", "read, admin"},
		{"ops", "public", "check, read, admin"},
		{"", "public", "check"},
		{"", "publico", ""},
		{"", "", ""},
	} {
		var got verbs
		for v := range verbCount {
			if callers[c.caller].May(v, c.domain) {
				got |= 1 << v
			}
		}
		if got.String() != c.want {
			t.Errorf("%q in %q: may %q, want %q", c.caller, c.domain, got, c.want)
		}
	}

	spiffe, err := url.Parse("spiffe://example/shop")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		cert x509.Certificate
		want *Caller
	}{
		{"a DNS name", x509.Certificate{DNSNames: []string{"other.example", "shop.example"}}, callers["shop"]},
		{"a URI", x509.Certificate{URIs: []*url.URL{spiffe}}, callers["shop"]},
		{"a common name", x509.Certificate{Subject: pkix.Name{CommonName: "ops"}}, callers["ops"]},
		{"a URI before a common name", x509.Certificate{URIs: []*url.URL{spiffe}, Subject: pkix.Name{CommonName: "ops"}}, callers["shop"]},
		{"a common name that is another's DNS name", x509.Certificate{Subject: pkix.Name{CommonName: "shop.example"}}, nil},
		{"a DNS name that is another's common name", x509.Certificate{DNSNames: []string{"ops"}}, nil},
		{"a name below", x509.Certificate{DNSNames: []string{"eu.shop.example"}}, nil},
		{"no name", x509.Certificate{}, nil},
	} {
		for range 2 { // the second time it is known
			if got := p.Certificate(&c.cert); got != c.want {
				t.Errorf("%s: %v, want %v", c.what, got, c.want)
			}
		}
	}
}

// TestGrantsProperty holds the lookup against trying every grant.
func TestGrantsProperty(t *testing.T) {
	domain := rapid.StringOfN(rapid.RuneFrom([]rune("ab*\x00é")), 0, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		grants := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) grant {
			return grant{domain.Draw(t, "domain"), rapid.Bool().Draw(t, "prefix"), verbs(rapid.IntRange(1, 1<<verbCount-1).Draw(t, "verbs"))}
		}), 0, 12).Draw(t, "grants")
		caller := newCaller("x", grants)
		for range 20 {
			d := domain.Draw(t, "asked")
			var want verbs
			for _, g := range grants {
				if g.domain == d || g.prefix && strings.HasPrefix(d, g.domain) {
					want |= g.verbs
				}
			}
			for v := range verbCount {
				if got := caller.May(v, d); got != want.has(v) {
					t.Fatalf("%v in %q: %v, want %v", v, d, got, want.has(v))
				}
			}
		}
	})
}

func TestCertificatesRememberedAreBounded(t *testing.T) {
	p := parse(t, "callers:\n  - {name: x, certificates: [cn:x], grants: [{domains: [d], verbs: [check]}]}\n")
	for range maxCertificates + 10 {
		p.Certificate(&x509.Certificate{Subject: pkix.Name{CommonName: "x"}})
	}
	n := 0
	p.known.callers.Range(func(any, any) bool { n++; return true })
	if n > maxCertificates || n == 0 {
		t.Errorf("%d are remembered, want 1 to %d", n, maxCertificates)
	}
}
