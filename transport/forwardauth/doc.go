// Package forwardauth is the door for proxies that ask about each request before they pass it
// on: nginx's auth_request, Traefik's ForwardAuth, Caddy's forward_auth and Envoy's ext_authz
// over HTTP. It answers /v1/authorize/DOMAIN and all paths below. docs/forward-auth.md is its reference.
//
// It decides what a request was, as far as the proxy may be believed, which checks that
// makes by the key authorize of the domain's rule file, and how the answer is told. The
// checks are the limiter.Service's. A refusal is never a 2xx: whatever cannot be made
// out or decided is refused. It starts no goroutine.
package forwardauth
