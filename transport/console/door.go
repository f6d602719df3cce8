package console

import (
	"errors"
	"net/http"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
	"github.com/sluice-project/sluice/transport/watch"
)

// Config is what the door is made of.
type Config struct {
	// Limiter answers. Required.
	Limiter limiter.Service
	// Hub is what is watched. Required.
	Hub *watch.Hub
	// Rules returns those in force, nil for none. Required.
	Rules func() *rules.Set
	// Guard says who may ask. nil lets operators alone.
	Guard *access.Guard
	// URL is where browsers on this machine reach the door, without a path: "http://127.0.0.1:7461".
	URL string
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

// Door is the console's handlers. They must stand behind httpapi.OwnPages.
type Door struct {
	Config
	logins *logins
}

// New returns the door.
func New(c Config) (*Door, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Door{c, newLogins()}, nil
}

// Mount adds the door's paths to mux.
func (d *Door) Mount(mux *http.ServeMux) {
	mountPage(mux)
	route(mux, http.MethodPost, "/console/code", d.code)
	route(mux, http.MethodPost, "/console/login", d.login)
	route(mux, http.MethodPost, "/console/logout", d.logout)
	route(mux, http.MethodGet, "/v1/watch", d.watch)
	route(mux, http.MethodGet, "/v1/rules", d.rules)
	route(mux, http.MethodPost, "/v1/inspect", d.inspect)
	route(mux, http.MethodPost, "/v1/inspect/reset", d.reset)
}

// route serves one method of a path, never from a cache, and refuses other methods.
func route(mux *http.ServeMux, method, path string, h func(http.ResponseWriter, *http.Request) error) {
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Method != method {
			w.Header().Set("Allow", method)
			httpanswer.Refuse(w, httpanswer.NewProblem(http.StatusMethodNotAllowed, "want "+method))
			return
		}
		if err := h(w, r); err != nil {
			httpanswer.Refuse(w, problemOf(err))
		}
	})
}

// problemOf maps the error of a handler.
func problemOf(err error) httpanswer.Problem {
	if p, ok := errors.AsType[*statusError](err); ok {
		return httpanswer.NewProblem(p.status, p.text)
	}
	return httpanswer.ProblemOf(err)
}

// statusError is refused with a status of its own.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }
