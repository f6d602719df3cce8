package forwardauth

import (
	"context"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
)

// TestOriginal: what counts as the original request, of all that a call says.
func TestOriginal(t *testing.T) {
	const file = `
domain: web
authorize:
  trusted_proxies: [10.0.0.0/8]
  descriptors:
    - - {key: ip, from: client_address}
      - {key: method, from: method}
      - {key: host, from: host, default: none}
      - {key: path, from: path}
`
	const own = "authorize:\n  original: {method: X-Original-Method, uri: X-Original-URL, host: X-Original-Host}\n"
	const told = "X-Forwarded-Method: POST\nX-Forwarded-Uri: /told?x\nX-Forwarded-Host: Told.Example:443\nX-Forwarded-For: 203.0.113.5, 192.0.2.9"
	for _, c := range []struct {
		name, file, want string
		call             call
	}{
		{"told", file, "192.0.2.9 POST told.example /told", call{path: Prefix + "web", method: "HEAD", headers: told}},
		{"told, with a query of the call's own", file, "192.0.2.9 POST told.example /told", call{path: Prefix + "web?rd=1", headers: told}},
		{"without a host", file, "192.0.2.9 POST none /told", call{path: Prefix + "web", headers: strings.Replace(told, "Told.Example:443", "", 1)}},
		{"the call's own", file, "192.0.2.9 DELETE own.example /own/x", call{path: Prefix + "web/own//x", method: "DELETE", host: "own.example:80", headers: "X-Forwarded-For: 192.0.2.9\nX-Forwarded-Method: POST\nX-Forwarded-Host: a"}},
		{"the call's own, of anyone", file, "198.51.100.7 DELETE own.example /own", call{path: Prefix + "web/own", peer: "198.51.100.7:1", method: "DELETE", host: "own.example", headers: told}},
		{"the root", file, "192.0.2.9 GET own.example /", call{path: Prefix + "web/", host: "own.example", headers: "X-Forwarded-For: 192.0.2.9"}},
		{"IPv6", file, "2001:db8:1:2:: GET own.example /", call{path: Prefix + "web/", peer: "[2001:db8:1:2:3:4:5:6]:1", host: "own.example"}},
		{"mapped", file, "192.0.2.9 GET own.example /", call{path: Prefix + "web/", peer: "[::ffff:10.1.1.1]:1", host: "own.example", headers: "X-Forwarded-For: ::ffff:192.0.2.9"}},
		{"other headers", strings.Replace(file, "authorize:\n", own, 1), "192.0.2.9 PUT b.example /orig", call{path: Prefix + "web",
			headers: told + "\nX-Original-Method: PUT\nX-Original-URL: https://b.example/orig?y\nX-Original-Host: b.example"}},
	} {
		var got []string
		d := open(t, apitest.NewNode(t), c.file+"descriptors: [{key: x}]\n", func(conf *Config) { conf.Limiter = spy{conf.Limiter, &got} })
		w := ask(d, c.call)
		if w.Code != 200 || strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %d %q %s\nwant %q", c.name, w.Code, got, w.Body, c.want)
		}
	}
}

// spy notes the values of the descriptors that are checked.
type spy struct {
	limiter.Service
	seen *[]string
}

func (s spy) Reserve(ctx context.Context, b *limiter.Batch, r limiter.ReserveRequest) (limiter.Reservation, error) {
	for i := range b.Checks {
		var values []string
		for _, e := range b.Checks[i].Descriptor {
			values = append(values, e.Value)
		}
		*s.seen = append(*s.seen, strings.Join(values, " "))
	}
	return s.Service.Reserve(ctx, b, r)
}
