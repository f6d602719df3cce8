package console

import (
	"net/http"
	"net/url"

	"github.com/sluice-project/sluice/transport"
)

// foreign says why a call comes from a page that is not ours, or nil. A token is never sent by a browser on its own, so
// this is for nodes without a policy, whose callers are known by their address alone, which a page of anybody shares.
func foreign(r *http.Request) error {
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return &transport.Error{Code: transport.Forbidden, Message: "this call comes from a page of another site (Sec-Fetch-Site: " + site + ")"}
	}
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || u.Host != r.Host {
			return &transport.Error{Code: transport.Forbidden, Message: "this call comes from a page of another origin than this node's console"}
		}
	}
	return nil
}

// stranger says why a caller is not one of this machine, or nil.
func stranger(r *http.Request) *transport.Error {
	// That Origin is our own was seen to.
	if err := transport.LocalOnly(r.RemoteAddr, func(header string) bool { return header != "Origin" && len(r.Header.Values(header)) > 0 }); err != nil {
		return err
	}
	return transport.LocalName(r.Host)
}
