package console

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

const (
	// codeLife is how long a code may be exchanged for a session, sessionLife how long that lasts.
	codeLife, sessionLife = time.Minute, 12 * time.Hour
	// maxCodes and maxSessions are kept at once.
	maxCodes, maxSessions = 16, 100
)

// cookiePaths are the only paths that browsers send the session's cookie to.
var cookiePaths = []string{"/console/api", "/console/logout"}

var (
	errNoSession = &limiter.Error{Code: limiter.Unauthenticated, Message: "not logged in, or no longer: open the address that `sluice console` prints on the node's machine; or call through the operators' socket"}
	errBadCode   = &limiter.Error{Code: limiter.Unauthenticated, Message: "this code is not known: it is good for one login within a minute; `sluice console` prints another"}
)

// session is a browser that has logged in: as an operator, or as the caller of id.
type session struct {
	operator bool
	id       access.Identity
	ends     time.Time
}

// vault keeps sessions by the SHA-256 of a secret that the browser has. It is safe for concurrent use.
type vault struct {
	most int // kept at once
	life time.Duration

	mu struct {
		sync.Mutex
		sessions map[[sha256.Size]byte]*session
	}
}

// put keeps s for the vault's life under a new secret, which it returns. The oldest make room for it.
func (v *vault) put(s *session) (secret string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.sessions == nil {
		v.mu.sessions = make(map[[sha256.Size]byte]*session)
	}
	s.ends = time.Now().Add(v.life)
	for len(v.mu.sessions) >= v.most {
		var oldest [sha256.Size]byte
		for key, other := range v.mu.sessions {
			if first := v.mu.sessions[oldest]; first == nil || other.ends.Before(first.ends) {
				oldest = key
			}
		}
		delete(v.mu.sessions, oldest)
	}
	secret = rand.Text()
	v.mu.sessions[sha256.Sum256([]byte(secret))] = s
	return secret
}

// take returns the session of secret, nil if there is none or it has ended, and deletes it if once.
func (v *vault) take(secret string, once bool) *session {
	v.mu.Lock()
	defer v.mu.Unlock()
	key := sha256.Sum256([]byte(secret))
	s := v.mu.sessions[key]
	ended := s != nil && !time.Now().Before(s.ends)
	if once || ended {
		delete(v.mu.sessions, key)
	}
	if ended {
		return nil
	}
	return s
}

// logins are the sessions, and the codes to exchange for one, which are good once.
type logins struct {
	// cookie is the cookie's name. Cookies are not bound to a port, so each node of a host has another.
	cookie          string
	codes, sessions vault
}

func newLogins() *logins {
	return &logins{
		cookie: "sluice-" + rand.Text()[:8],
		codes:  vault{most: maxCodes, life: codeLife}, sessions: vault{most: maxSessions, life: sessionLife},
	}
}

// of returns the session of r, nil for none, and ends it if once.
func (l *logins) of(r *http.Request, once bool) *session {
	c, err := r.Cookie(l.cookie)
	if err != nil {
		return nil
	}
	return l.sessions.take(c.Value, once)
}

// setCookie sets the session's cookie, or deletes it for life 0.
func (l *logins) setCookie(w http.ResponseWriter, r *http.Request, value string, life time.Duration) {
	age := int(life / time.Second)
	if life == 0 {
		age = -1
	}
	for _, path := range cookiePaths {
		http.SetCookie(w, &http.Cookie{
			Name: l.cookie, Value: value, Path: path, MaxAge: age,
			HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
		})
	}
}

// enter authenticates a call by its credentials, or else by its session, and authorizes it for verb in domain.
func (a *API) enter(r *http.Request, verb access.Verb, domain string) (access.Pass, error) {
	var s *session
	if r.Header["Authorization"] == nil {
		s = a.logins.of(r, false)
	}
	ctx := r.Context()
	var pass access.Pass
	var rejected *limiter.Error
	switch {
	case s == nil:
		pass, rejected = a.Guard.Request(r, limiter.HTTPAPI)
	case s.operator:
		ctx = access.AsOperator(ctx)
		pass, rejected = a.Guard.Request(r.WithContext(ctx), limiter.HTTPAPI)
	default: // checked each time: the ACL may have changed
		pass, rejected = a.Guard.Enter(limiter.HTTPAPI, &s.id)
	}
	if rejected == nil {
		rejected = pass.Operate(ctx, verb, domain)
	}
	switch rejected {
	case nil:
		return pass, nil
	case limiter.ErrNotOperator:
		return pass, errNoSession
	}
	return pass, rejected
}

// loginCode is the response to POST /console/code. The fragment of URL has the code: browsers do not send fragments.
type loginCode struct {
	URL string `json:"url"`
}

// code serves POST /console/code: operators get an address for one login.
func (a *API) code(w http.ResponseWriter, r *http.Request) error {
	if !access.IsOperator(r.Context()) || r.Header["Authorization"] != nil { // a caller's login is with its token
		return limiter.ErrNotOperator
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, loginCode{a.URL + "/console#login=" + a.logins.codes.put(&session{operator: true})})
	return nil
}

// loginOptions is the response to GET /console/login-options: what a person needs to sign in. AccessControl: the node takes tokens.
// Runbook is where to read about a node that does not respond.
type loginOptions struct {
	AccessControl bool   `json:"access_control"`
	URL           string `json:"url"`
	Command       string `json:"command"`
	Pod           string `json:"pod,omitempty"`
	Runbook       string `json:"runbook"`
}

// options serves GET /console/login-options.
func (a *API) options(w http.ResponseWriter, _ *http.Request) error {
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, loginOptions{!a.Guard.Open(), a.URL, a.Command, a.Pod, limiter.DocsURL + "operate/troubleshooting.md#sluicedown"})
	return nil
}

// login serves POST /console/login: it begins a session for a code or a caller's token.
func (a *API) login(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Code string `json:"code"`
	}
	if err := a.readJSON(w, r, &body); err != nil {
		return err
	}
	s := &session{}
	if body.Code != "" {
		if s = a.logins.codes.take(body.Code, true); s == nil {
			return errBadCode
		}
	} else {
		if a.Guard.Open() { // there are no tokens without an ACL
			return errNoSession
		}
		if _, rejected := a.Guard.Request(r, limiter.HTTPAPI); rejected != nil {
			return rejected
		}
		s.id = access.OfRequest(r)
	}
	a.logins.setCookie(w, r, a.logins.sessions.put(s), sessionLife)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// logout serves POST /console/logout.
func (a *API) logout(w http.ResponseWriter, r *http.Request) error {
	a.logins.of(r, true)
	a.logins.setCookie(w, r, "", 0)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
