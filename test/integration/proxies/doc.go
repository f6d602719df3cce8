// Package proxies runs the files of examples/nginx and examples/caddy as they stand, in a real nginx and a
// real Caddy before a real node, and holds those of examples/traefik and examples/envoy-ext-authz to the
// words that these proxies know. It has tests only.
//
// It is a module of its own, so that Caddy is downloaded by who works on sluice and never by who uses it.
package proxies
