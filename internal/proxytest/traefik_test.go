package proxytest

import (
	"net/http"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// traefikStatic and traefikDynamic are as much of Traefik's configuration as the example has, in the
// spelling of its reference.
type traefikStatic struct {
	EntryPoints map[string]struct {
		Address string `yaml:"address"`
	} `yaml:"entryPoints"`
	Providers struct {
		File struct {
			Filename string `yaml:"filename"`
		} `yaml:"file"`
	} `yaml:"providers"`
}

type traefikDynamic struct {
	HTTP struct {
		Middlewares map[string]struct {
			ForwardAuth forwardAuth `yaml:"forwardAuth"`
		} `yaml:"middlewares"`
		Routers map[string]struct {
			Rule        string   `yaml:"rule"`
			EntryPoints []string `yaml:"entryPoints"`
			Middlewares []string `yaml:"middlewares"`
			Service     string   `yaml:"service"`
		} `yaml:"routers"`
		Services map[string]struct {
			LoadBalancer struct {
				Servers []struct {
					URL string `yaml:"url"`
				} `yaml:"servers"`
			} `yaml:"loadBalancer"`
		} `yaml:"services"`
	} `yaml:"http"`
}

type forwardAuth struct {
	Address            string   `yaml:"address"`
	TrustForwardHeader bool     `yaml:"trustForwardHeader"`
	AuthRequestHeaders []string `yaml:"authRequestHeaders"`
}

// decodeYAML decodes text into v, which has a field for each of its keys.
func decodeYAML(t *testing.T, text string, v any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatal(err)
	}
}

// TestTraefik: the files have keys that Traefik knows and parts that fit together, and what its ForwardAuth
// sends by them is understood.
func TestTraefik(t *testing.T) {
	host := newHost(t)
	var static traefikStatic
	decodeYAML(t, example(t, "traefik/traefik.yaml", host), &static)
	var dynamic traefikDynamic
	decodeYAML(t, example(t, strings.TrimPrefix(static.Providers.File.Filename, "examples/"), host), &dynamic)

	if got := static.EntryPoints["web"].Address; got != host+":10000" {
		t.Errorf("the entry point listens at %q", got)
	}
	r := dynamic.HTTP.Routers["everything"]
	if len(r.EntryPoints) != 1 || r.EntryPoints[0] != "web" || len(r.Middlewares) != 1 || r.Rule != "PathPrefix(`/`)" {
		t.Fatalf("the router is %+v", r)
	}
	if s := dynamic.HTTP.Services[r.Service].LoadBalancer.Servers; len(s) != 1 || s[0].URL != "http://"+host+":10001" {
		t.Errorf("the service is %v", s)
	}
	auth := dynamic.HTTP.Middlewares[r.Middlewares[0]].ForwardAuth
	if auth.TrustForwardHeader || len(auth.AuthRequestHeaders) == 0 {
		t.Fatalf("the middleware is %+v", auth)
	}

	node := startSluice(t, host, "traefik/rules")
	standIn{t: t, tells: func(string) bool { return false }, asks: func(r *http.Request) *http.Request {
		q, err := http.NewRequest("GET", auth.Address, nil)
		if err != nil {
			t.Error(err)
			return nil
		}
		for _, name := range auth.AuthRequestHeaders {
			if values := r.Header.Values(name); len(values) > 0 {
				q.Header[http.CanonicalHeaderKey(name)] = values
			}
		}
		q.Header.Set("X-Forwarded-For", peerOf(t, r))
		q.Header.Set("X-Forwarded-Method", r.Method)
		q.Header.Set("X-Forwarded-Proto", "http")
		q.Header.Set("X-Forwarded-Host", r.Host)
		q.Header.Set("X-Forwarded-Uri", r.URL.RequestURI())
		return q
	}}.listen(host)
	conversation(t, host, "Too many attempts", false)
	node.stop()
	failsClosed(t, host, "no node answers")
}
