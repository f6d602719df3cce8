package main

import (
	"net/http"

	"github.com/sluice-project/sluice/transport/console"
	"github.com/sluice-project/sluice/transport/watch"
)

// openConsole makes the console's door, unless --console=false, and returns what puts it before sluice's API.
func (n *node) openConsole() (mount func(*http.ServeMux), err error) {
	n.hub = watch.NewHub(watch.Config{
		Members: n.service.Members, Here: n.service.FactsHere, Others: n.inquiries.facts, Top: n.service.Top,
	})
	if !n.settings.console {
		return func(*http.ServeMux) {}, nil
	}
	door, err := console.New(console.Config{Limiter: n.service, Hub: n.hub, Rules: n.service.Rules, Guard: n.guard, URL: n.consoleURL()})
	if err != nil {
		return nil, err
	}
	return door.Mount, nil
}

// consoleURL is where browsers on this machine reach the HTTP port.
func (n *node) consoleURL() string {
	scheme := "http"
	if n.tls.doors != nil {
		scheme = "https"
	}
	return scheme + "://" + reachable(n.listen.http)
}
