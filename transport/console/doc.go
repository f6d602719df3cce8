// Package console is the door for people who run a cluster: the page at /console, which is plain HTML, CSS and
// JavaScript from within the binary, and what it asks. docs/console.md is the reference.
//
//	GET  /v1/watch          the cluster live, as server-sent events     read in all domains
//	GET  /v1/rules          the rules in force                          read in all domains
//	POST /v1/inspect        what a descriptor is held to                read in its domain
//	POST /v1/inspect/reset  forgets its counter                         reset in its domain
//	POST /console/code      a one-time login address                    operators
//	POST /console/login     a session for its code, or for a token      everybody
//	POST /console/logout    ends the session                            everybody
//
// A session is a cookie of the browser; it may do what the operator or the caller may who logged in. What is asked, the Limiter and the Hub answer; who may ask, the
// Guard. It starts no goroutine.
package console
