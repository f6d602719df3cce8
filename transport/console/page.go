// Package console is the API for operators: the page at /console, plain HTML, CSS and JavaScript within the binary, and the
// calls that it makes. docs/operate/console.md is the reference.
//
//	GET  /console/api/watch          the cluster live, as server-sent events     read in all domains
//	GET  /console/api/rules          the rules in force                          read in all domains
//	POST /console/api/inspect        the rule and counter of a descriptor         read in its domain
//	POST /console/api/inspect/reset  forgets its counter                         reset in its domain
//	GET  /console/login-options  how to sign in                         all
//	POST /console/code      a one-time login URL                        operators
//	POST /console/login     a session for its code, or for a token      all
//	POST /console/logout    ends the session                            all
//
// A session is a cookie of the browser, with the permissions of the operator or the caller that logged in. It starts no
// goroutine.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"net/http"
	"path"
	"time"

	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
	"github.com/sluicecluster/sluice/transport/watch"
)

//go:embed page
var files embed.FS

// policy restricts the page to its own files and to its own node.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guards are the security headers of the page.
var guards = map[string]string{
	"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
	"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}

// pages are the paths of the page's files.
var pages = map[string]string{
	"/console": "index.html", "/console/console.css": "console.css", "/console/console.js": "console.js",
	"/console/charts.js": "charts.js", "/console/client.js": "client.js", "/console/dom.js": "dom.js", "/console/inspect.js": "inspect.js",
	"/console/session.js": "session.js", "/console/views.js": "views.js", "/console/icon.svg": "icon.svg",
}

// types are content types by extension: the machine's own table may differ.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// mountPage serves the page, without authentication: it has no data of the cluster.
func mountPage(mux *http.ServeMux) {
	for at, file := range pages {
		data, err := files.ReadFile("page/" + file)
		if err != nil {
			panic("console: " + err.Error()) // it was compiled in
		}
		sum := sha256.Sum256(data)
		tag := `"` + hex.EncodeToString(sum[:8]) + `"`
		kind := types[path.Ext(file)]
		mux.HandleFunc(at, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			for name, value := range guards {
				h.Set(name, value)
			}
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				h.Set("Allow", "GET, HEAD")
				httpanswer.Reject(w, httpanswer.NewProblem(http.StatusMethodNotAllowed, "want GET, HEAD"))
				return
			}
			// Revalidated each time, so that an upgraded node shows its own page.
			h.Set("Cache-Control", "no-cache")
			h.Set("ETag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			h.Set("Content-Type", kind)
			if r.Method == http.MethodGet {
				_, _ = w.Write(data)
			}
		})
	}
	mux.Handle("GET /{$}", http.RedirectHandler("/console", http.StatusFound))
	mux.HandleFunc("/console/{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/console", http.StatusMovedPermanently)
	})
}

// Config configures the API.
type Config struct {
	// Limiter, Hub and Rules, which returns the rules in force or nil, are required.
	Limiter limiter.Service
	Hub     *watch.Hub
	Rules   func() *rules.Set
	// Guard authenticates and authorizes callers. nil admits operators only.
	Guard *access.Guard
	// URL is where browsers on this machine reach the API, without a path: "http://127.0.0.1:7461".
	URL string
	// Command prints a login URL on the node's machine: "sluice console". Pod is the name of the node's Kubernetes pod, if it is
	// in one.
	Command, Pod string
	// Memory bounds the memory of bodies, with that of other APIs. nil bounds nothing.
	Memory *inflow.Memory
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Limiter == nil:
		return errors.New("console: Limiter is required")
	case c.Hub == nil:
		return errors.New("console: Hub is required")
	case c.Rules == nil:
		return errors.New("console: Rules is required")
	}
	return nil
}

// API is the console's handlers. They must stand behind httpapi.OwnPages.
type API struct {
	Config
	logins *logins
}

// New returns the API.
func New(c Config) (*API, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &API{c, newLogins()}, nil
}

// Mount adds the API's paths to mux.
func (a *API) Mount(mux *http.ServeMux) {
	mountPage(mux)
	route(mux, http.MethodGet, "/console/login-options", a.options)
	route(mux, http.MethodPost, "/console/code", a.code)
	route(mux, http.MethodPost, "/console/login", a.login)
	route(mux, http.MethodPost, "/console/logout", a.logout)
	route(mux, http.MethodGet, "/console/api/watch", a.watch)
	route(mux, http.MethodGet, "/console/api/rules", a.rules)
	route(mux, http.MethodPost, "/console/api/inspect", a.inspect)
	route(mux, http.MethodPost, "/console/api/inspect/reset", a.reset)
}

// route serves one method of a path, never from a cache, and rejects other methods.
func route(mux *http.ServeMux, method, path string, h func(http.ResponseWriter, *http.Request) error) {
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Method != method {
			w.Header().Set("Allow", method)
			httpanswer.Reject(w, httpanswer.NewProblem(http.StatusMethodNotAllowed, "want "+method))
			return
		}
		if err := h(w, r); err != nil {
			httpanswer.Reject(w, problemOf(err))
		}
	})
}

// problemOf maps the error of a handler.
func problemOf(err error) httpanswer.Problem {
	if e, ok := errors.AsType[*statusError](err); ok {
		return httpanswer.NewProblem(e.status, e.text)
	}
	return httpanswer.ProblemOf(err)
}

// statusError is an error with an HTTP status of its own.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// writePatience is how long a watcher may take to accept an event.
const writePatience = 10 * time.Second

// watch serves GET /console/api/watch: the Hub's events, until the client leaves, loses its permission, or is too slow.
func (a *API) watch(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.enter(r, access.Read, ""); err != nil {
		return err
	}
	watcher, err := a.Hub.Watch()
	if err != nil {
		return &statusError{http.StatusServiceUnavailable, err.Error()}
	}
	defer watcher.Close()
	c := http.NewResponseController(w)
	// The server's time-outs are for shorter calls. Writers of tests have no deadlines.
	_ = c.SetReadDeadline(time.Time{})
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	_ = c.Flush()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case event, ok := <-watcher.Events():
			if !ok {
				return nil
			}
			if _, err := a.enter(r, access.Read, ""); err != nil {
				return nil // the token was revoked
			}
			_ = c.SetWriteDeadline(time.Now().Add(writePatience))
			if _, err := w.Write(event); err != nil || c.Flush() != nil {
				return nil
			}
		}
	}
}
