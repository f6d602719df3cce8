package console

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

const (
	// codeLife is how long a code may be exchanged for a session, sessionLife how long that lasts.
	codeLife, sessionLife = time.Minute, 12 * time.Hour
	// maxCodes and maxSessions are kept at once; the oldest go first.
	maxCodes, maxSessions = 16, 100
)

// cookiePaths are the only paths that browsers send the session's cookie to.
var cookiePaths = []string{"/v1/watch", "/v1/rules", "/v1/inspect", "/console/logout"}

var (
	errNoSession = &limiter.Error{Code: limiter.Unauthenticated, Message: "not logged in, or no longer: open the address that `sluice console` prints on the node's machine; or call through the operators' socket"}
	errBadCode   = &limiter.Error{Code: limiter.Unauthenticated, Message: "this code is not known: it is good for one login within a minute; `sluice console` prints another"}
)

// session is a browser that has logged in: as an operator, or as the caller that has shown id.
type session struct {
	operator bool
	id       access.Identity
	ends     time.Time
}

// logins are the codes that may be exchanged and the sessions, by the SHA-256 of what the browser has.
type logins struct {
	// cookie is the cookie's name. Cookies are not bound to a port, so each node of a host has another.
	cookie string

	mu struct {
		sync.Mutex
		codes, sessions map[[sha256.Size]byte]*session
	}
}

func newLogins() *logins {
	l := &logins{cookie: "sluice-" + rand.Text()[:8]}
	l.mu.codes, l.mu.sessions = make(map[[sha256.Size]byte]*session), make(map[[sha256.Size]byte]*session)
	return l
}

// put keeps s for life under a new secret, which it returns. The caller holds l.mu.
func put(all map[[sha256.Size]byte]*session, most int, s *session, life time.Duration) (secret string) {
	now := time.Now()
	s.ends = now.Add(life)
	for len(all) >= most {
		var oldest [sha256.Size]byte
		first := true
		for key, other := range all {
			if first || other.ends.Before(all[oldest].ends) {
				oldest, first = key, false
			}
		}
		delete(all, oldest)
	}
	secret = rand.Text()
	all[sha256.Sum256([]byte(secret))] = s
	return secret
}

// take returns what is kept under secret, nil if nothing is or its time is over, and forgets it if once.
func take(all map[[sha256.Size]byte]*session, secret string, once bool) *session {
	key := sha256.Sum256([]byte(secret))
	s := all[key]
	over := s != nil && !time.Now().Before(s.ends)
	if once || over {
		delete(all, key)
	}
	if over {
		return nil
	}
	return s
}

// code returns a code for a session of an operator.
func (l *logins) code() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return put(l.mu.codes, maxCodes, &session{operator: true}, codeLife)
}

// exchange returns the session that code is for, nil for none. A code is good once.
func (l *logins) exchange(code string) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return take(l.mu.codes, code, true)
}

// open returns the value of the cookie of a new session.
func (l *logins) open(s *session) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return put(l.mu.sessions, maxSessions, s, sessionLife)
}

// of returns the session of r, nil for none, and ends it if once.
func (l *logins) of(r *http.Request, once bool) *session {
	c, err := r.Cookie(l.cookie)
	if err != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return take(l.mu.sessions, c.Value, once)
}

// setCookie sets the session's cookie, or takes it away for life 0.
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

// enter says who calls, by credentials in the request or else by its session, and whether they may do verb in domain.
func (d *API) enter(r *http.Request, verb access.Verb, domain string) (access.Pass, error) {
	var s *session
	if r.Header["Authorization"] == nil {
		s = d.logins.of(r, false)
	}
	ctx := r.Context()
	var pass access.Pass
	var rejected *limiter.Error
	switch {
	case s == nil:
		pass, rejected = d.Guard.Request(r, limiter.HTTPAPI)
	case s.operator:
		ctx = access.AsOperator(ctx)
		pass, rejected = d.Guard.Request(r.WithContext(ctx), limiter.HTTPAPI)
	default: // asked anew each time: the caller may be gone from the file
		pass, rejected = d.Guard.Enter(limiter.HTTPAPI, &s.id)
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

// loginCode is the answer to POST /console/code.
type loginCode struct {
	// URL has the code in its fragment, which browsers do not send.
	URL string `json:"url"`
}

// code serves POST /console/code: operators get an address to log in with.
func (d *API) code(w http.ResponseWriter, r *http.Request) error {
	if !access.IsOperator(r.Context()) || r.Header["Authorization"] != nil { // a caller's login is with its token
		return limiter.ErrNotOperator
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, loginCode{d.URL + "/console#login=" + d.logins.code()})
	return nil
}

// login serves POST /console/login: it begins a session for a code, or for the token of a caller.
func (d *API) login(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Code string `json:"code"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	s := &session{}
	if body.Code != "" {
		if s = d.logins.exchange(body.Code); s == nil {
			return errBadCode
		}
	} else {
		if d.Guard.Open() {
			return errNoSession // tokens mean nothing without callers
		}
		if _, rejected := d.Guard.Request(r, limiter.HTTPAPI); rejected != nil {
			return rejected
		}
		s.id = access.OfRequest(r)
	}
	d.logins.setCookie(w, r, d.logins.open(s), sessionLife)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// logout serves POST /console/logout.
func (d *API) logout(w http.ResponseWriter, r *http.Request) error {
	d.logins.of(r, true)
	d.logins.setCookie(w, r, "", 0)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
