package proxies

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// traefikStatic and traefikDynamic are as much of Traefik's configuration as the example has, in the
// spelling of its reference.
type traefikStatic struct {
	EntryPoints map[string]struct {
		Address          string `yaml:"address"`
		ForwardedHeaders struct {
			TrustedIPs []string `yaml:"trustedIPs"`
		} `yaml:"forwardedHeaders"`
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
			ForwardAuth *forwardAuth `yaml:"forwardAuth"`
			Headers     *struct {
				CustomRequestHeaders map[string]string `yaml:"customRequestHeaders"`
			} `yaml:"headers"`
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

// traefik is what the two files of an example make.
type traefik struct {
	t       *testing.T
	trusted []string // whose X-Forwarded-… are kept
	remove  []string // headers
	auth    forwardAuth
}

// readTraefik reads the files of a folder of the examples, which have keys that Traefik knows and parts that fit together.
func readTraefik(t *testing.T, folder, host string) traefik {
	t.Helper()
	var static traefikStatic
	decodeYAML(t, example(t, folder+"/traefik.yaml", host), &static)
	var dynamic traefikDynamic
	decodeYAML(t, example(t, strings.TrimPrefix(static.Providers.File.Filename, "examples/"), host), &dynamic)
	if got := static.EntryPoints["web"].Address; got != host+":10000" {
		t.Errorf("the entry point listens at %q", got)
	}
	r := dynamic.HTTP.Routers["everything"]
	if len(r.EntryPoints) != 1 || r.EntryPoints[0] != "web" || r.Rule != "PathPrefix(`/`)" {
		t.Fatalf("the router is %+v", r)
	}
	if s := dynamic.HTTP.Services[r.Service].LoadBalancer.Servers; len(s) != 1 || s[0].URL != "http://"+host+":10001" {
		t.Errorf("the service is %v", s)
	}
	tr := traefik{t: t, trusted: static.EntryPoints["web"].ForwardedHeaders.TrustedIPs}
	for i, name := range r.Middlewares {
		m := dynamic.HTTP.Middlewares[name]
		switch last := i == len(r.Middlewares)-1; {
		case last && m.ForwardAuth != nil && len(m.ForwardAuth.AuthRequestHeaders) > 0:
			tr.auth = *m.ForwardAuth
		case !last && m.Headers != nil:
			for header, value := range m.Headers.CustomRequestHeaders {
				if value != "" {
					t.Fatalf("%s: %q", header, value)
				}
				tr.remove = append(tr.remove, header)
			}
		default:
			t.Fatalf("middleware %d, %s, is %+v", i, name, m)
		}
	}
	return tr
}

// asks is what Traefik's ForwardAuth sends about r, by its source: headers of the entry point first, then those of the middlewares.
func (tr traefik) asks(r *http.Request) *http.Request {
	peer := peerOf(tr.t, r)
	if !slices.Contains(tr.trusted, peer) {
		for _, name := range []string{"For", "Host", "Method", "Port", "Proto", "Server", "Uri"} {
			r.Header.Del("X-Forwarded-" + name)
		}
	}
	for _, name := range tr.remove {
		r.Header.Del(name)
	}
	q, err := http.NewRequest("GET", tr.auth.Address, nil)
	if err != nil {
		tr.t.Error(err)
		return nil
	}
	for _, name := range tr.auth.AuthRequestHeaders {
		if values := r.Header.Values(name); len(values) > 0 {
			q.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	chain := peer
	if prior := r.Header.Values("X-Forwarded-For"); tr.auth.TrustForwardHeader && len(prior) > 0 {
		chain = strings.Join(prior, ", ") + ", " + peer
	}
	q.Header.Set("X-Forwarded-For", chain)
	for name, own := range map[string]string{"Method": r.Method, "Proto": "http", "Host": r.Host, "Uri": r.URL.RequestURI()} {
		if told := r.Header.Get("X-Forwarded-" + name); told != "" && tr.auth.TrustForwardHeader {
			own = told
		}
		q.Header.Set("X-Forwarded-"+name, own)
	}
	return q
}

// TestTraefik: what ForwardAuth sends by the example is understood.
func TestTraefik(t *testing.T) {
	host := newHost(t)
	tr := readTraefik(t, "traefik", host)
	if tr.auth.TrustForwardHeader {
		t.Fatal("clients can tell of another request")
	}
	node := startSluice(t, host, "traefik/rules")
	standIn{t: t, tells: func(string) bool { return false }, asks: tr.asks}.listen(host)
	conversation(t, host, "Too many attempts", false)
	node.stop()
	failsClosed(t, host, "no node answers")
}

// TestTraefikBehindProxy: the clients of the proxy in front have counters of their own, and neither they nor those who come
// past it can tell of another client or another request.
func TestTraefikBehindProxy(t *testing.T) {
	host := newHost(t)
	tr := readTraefik(t, "traefik/behind-proxy", host)
	if !slices.Equal(tr.trusted, []string{host}) || !tr.auth.TrustForwardHeader {
		t.Fatalf("the example is %+v", tr)
	}
	startSluice(t, host, "traefik/rules")
	// Calls from this machine come from 127.0.0.1, which the rules trust. The proxy in front adds its client to what that one has sent.
	const local = "127.0.0.1"
	tr.trusted = []string{local}
	standIn{t: t, tells: func(string) bool { return false }, asks: tr.asks}.listen(host)
	front := client{t, host, local}
	login := func(c client, headers ...string) int {
		return c.ask("POST", "/login", append(headers, "Content-Length: 0")...).status
	}
	for _, who := range []string{"203.0.113.1", "203.0.113.2"} {
		for i := range 5 {
			if s := login(front, "X-Forwarded-For: "+who); s != 200 {
				t.Errorf("login %d of %s: %d", i, who, s)
			}
		}
		for _, headers := range [][]string{
			{"X-Forwarded-For: " + who},
			{"X-Forwarded-For: 198.51.100.1, " + who},
			{"X-Forwarded-For: " + who, "X-Forwarded-Uri: /", "X-Forwarded-Method: GET"},
		} {
			if s := login(front, headers...); s != 429 {
				t.Errorf("the sixth login of %s with %q: %d", who, headers, s)
			}
		}
	}
	past := client{t, host, "127.0.0.11"}
	for i := range 7 {
		want := 200
		if i >= 5 {
			want = 429
		}
		if s := login(past, "X-Forwarded-For: 198.51.100."+strconv.Itoa(i), "X-Forwarded-Uri: /"); s != want {
			t.Errorf("login %d past the proxy in front: %d, want %d", i, s, want)
		}
	}
}
