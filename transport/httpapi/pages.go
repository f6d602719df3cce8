package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// crossOrigin rejects requests that change something and that a page of another origin makes.
var crossOrigin = http.NewCrossOriginProtection()

// OwnPages returns next behind a check that rejects requests that a browser makes for a page of another site, and those for a
// host name that the page may have made up (DNS rebinding): the host must be an IP address, localhost or one of hosts. Only
// navigations may come from elsewhere, for links. Requests without Origin and Sec-Fetch-Site are no page's, as far as can be
// told, and are not looked at.
func OwnPages(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused := foreign(r, hosts); refused != nil {
			Refuse(w, refused)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Refuse answers with the problem that e is.
func Refuse(w http.ResponseWriter, e *limiter.Error) { httpanswer.Refuse(w, httpanswer.ProblemOf(e)) }

// foreign says why r is of a page that is not this node's, or nil.
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
