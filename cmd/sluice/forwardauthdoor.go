package main

import (
	"net/http"

	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/forwardauth"
)

// beforeOthers puts the door for proxies that ask about each request before the other handlers of the
// HTTP port: paths below it are those of requests that others got, and come as they are.
func (n *node) beforeOthers(others http.Handler) (http.Handler, error) {
	door, err := forwardauth.New(forwardauth.Config{Limiter: n.service, Guard: n.guard, Authorize: n.authorize, Leaving: n.draining.Load})
	if err != nil {
		return nil, err
	}
	return door.Before(others), nil
}

// authorize returns what is checked of requests in a domain, by the rules in force.
func (n *node) authorize(domain string) *rules.Authorize {
	set := n.service.Rules()
	if set == nil {
		return nil
	}
	return set.Authorize(domain)
}
