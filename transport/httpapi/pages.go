package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// crossOrigin rejects requests that change something and that a page of another origin makes.
var crossOrigin = http.NewCrossOriginProtection()

// OwnPages wraps next to reject requests that a browser makes for a page of another site, and those for a host name that the
// page may have made up (DNS rebinding): the host must be an IP address, localhost or one of hosts. Only navigations, for
// links, may come from other sites. Requests without Origin and Sec-Fetch-Site do not come from pages and pass.
func OwnPages(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rejected := foreign(r, hosts); rejected != nil {
			Reject(w, rejected)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Reject answers with the problem that e is.
func Reject(w http.ResponseWriter, e *limiter.Error) { httpanswer.Reject(w, httpanswer.ProblemOf(e)) }

// foreign returns why r comes from a page that is not this node's, or nil.
func foreign(r *http.Request, hosts []string) *limiter.Error {
	site, origins := r.Header.Values("Sec-Fetch-Site"), r.Header.Values("Origin")
	if len(site) == 0 && len(origins) == 0 {
		return nil
	}
	forbidden := func(message string) *limiter.Error {
		return &limiter.Error{Code: limiter.Forbidden, Message: message}
	}
	if host := hostName(r.Host); !isAddress(host) && host != "localhost" && !slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
		return forbidden("a web page calls this node by a name that it does not know as its own: use an IP address or localhost, or start it with --allowed-hosts=" + clip(host))
	}
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead
	for _, s := range site {
		if s != "same-origin" && s != "none" && !(safe && r.Header.Get("Sec-Fetch-Mode") == "navigate") {
			return forbidden("this request comes from a web page of another site (Sec-Fetch-Site: " + clip(s) + ")")
		}
	}
	for _, origin := range origins {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || u.Host != r.Host {
			return forbidden("this request comes from a web page of another origin")
		}
	}
	if crossOrigin.Check(r) != nil {
		return forbidden("this request comes from a web page of another site")
	}
	return nil
}

// hostName returns the host of a Host header without its port.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// health is the body of GET /healthz: see Config. The node stays alive with the older rules.
type health struct {
	Status       string   `json:"status"`
	RulesError   string   `json:"rules_error,omitempty"`
	RulesSkipped []string `json:"rules_skipped,omitempty"`
	Regions      []string `json:"regions,omitempty"`
}

// healthz serves GET /healthz: the process is alive.
func (d *api) healthz(w http.ResponseWriter, _ *http.Request) error {
	h := health{Status: "alive"}
	if d.RulesError != nil {
		if err := d.RulesError(); err != nil {
			h.RulesError = err.Error()
		}
	}
	if d.RulesSkipped != nil {
		h.RulesSkipped = d.RulesSkipped()
	}
	if d.Regions != nil {
		h.Regions = d.Regions()
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, h)
	return nil
}

// readiness is the body of GET /readyz.
type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons,omitempty"`
}

// readyz serves GET /readyz: whether this node may get traffic.
func (d *api) readyz(w http.ResponseWriter, _ *http.Request) error {
	ok, reasons := d.Ready()
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	httpanswer.Write(w, status, httpanswer.TypeJSON, readiness{ok, reasons})
	return nil
}

// defaultTop is the number of keys of a request that does not set n.
const defaultTop = 20

// topJSON is the body of GET /admin/v1alpha1/top. Times are in seconds.
type topJSON struct {
	By      string       `json:"by"`
	Covers  float64      `json:"covers"`
	Keys    []topKeyJSON `json:"keys"`
	Nodes   []string     `json:"nodes"`
	Missing []string     `json:"missing"`
}

type topKeyJSON struct {
	Domain     string             `json:"domain"`
	Descriptor []httpanswer.Entry `json:"descriptor"`
	Rule       string             `json:"rule,omitempty"`
	Cut        bool               `json:"cut,omitempty"`
	Count      uint64             `json:"count"`
	Error      uint64             `json:"error,omitempty"`
	PerSecond  float64            `json:"per_second"`
}

// top serves GET /admin/v1alpha1/top.
func (d *api) top(w http.ResponseWriter, r *http.Request) error {
	pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
	if rejected != nil {
		return rejected
	}
	q, err := readTop(r.URL.RawQuery)
	if err != nil {
		return err
	}
	if rejected := pass.May(access.Read, q.Domain); rejected != nil {
		return rejected
	}
	q.Operator = pass.IsOperator(r.Context())
	top, err := d.Limiter.Top(r.Context(), q)
	if err != nil {
		return err
	}
	body := topJSON{
		By: top.By.String(), Covers: top.Covers.Seconds(), Keys: make([]topKeyJSON, len(top.Keys)),
		Nodes: append([]string{}, top.Nodes...), Missing: append([]string{}, top.Missing...),
	}
	for i := range top.Keys {
		k := &top.Keys[i]
		body.Keys[i] = topKeyJSON{
			Domain: k.Domain, Descriptor: httpanswer.Entries(k.Descriptor), Rule: k.Rule, Cut: k.Cut,
			Count: k.Count, Error: k.Error, PerSecond: k.PerSecond,
		}
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, body)
	return nil
}

// readTop reads the query of GET /admin/v1alpha1/top.
func readTop(query string) (q limiter.TopQuery, err error) {
	q.N = defaultTop
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, &limiter.Error{Code: limiter.Invalid, Message: "malformed query: " + err.Error()}
	}
	for name, list := range values {
		invalid := func(format string, args ...any) error {
			return &limiter.Error{Code: limiter.Invalid, Field: clip(name), Message: fmt.Sprintf(format, args...)}
		}
		if len(list) > 1 {
			return q, invalid("is there %d times", len(list))
		}
		value := list[0]
		switch name {
		case "by":
			switch value {
			case limiter.ByLimited.String():
			case limiter.ByFrequent.String():
				q.By = limiter.ByFrequent
			default:
				return q, invalid("%q; want limited or frequent", clip(value))
			}
		case "n":
			if q.N, err = strconv.Atoi(value); err != nil {
				return q, invalid("%q; want 1 to %d", clip(value), limiter.MaxTop)
			}
		case "domain":
			q.Domain = value
		default:
			return q, invalid("unknown parameter; want one of by, n, domain")
		}
	}
	return q, nil
}
