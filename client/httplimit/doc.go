// Package httplimit holds HTTP servers and clients of Go to the limits of a sluice cluster.
//
// Handler asks before it lets a request through to another handler, and Transport waits before it
// lets one out. What is asked is made by Keys: of the client's address, the user, an API key, the route, or
// anything else, together or each for itself.
//
// The package decides how a denial looks over HTTP. Who decides it, and what happens when nobody does, is
// package client's.
package httplimit
