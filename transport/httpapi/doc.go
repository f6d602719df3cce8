// Package httpapi is the HTTP door: a JSON form of checks with the rate limit
// headers that HTTP clients know, the member list and how one is taken off it, and the
// probes. docs/api.md is its reference.
//
// It decides status codes, headers and bodies, and that an operator's call comes from
// this machine; nothing about checks, which are the limiter.Service's. It starts no
// goroutine; net/http owns those it runs in.
package httpapi
