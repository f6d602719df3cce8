package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/load"
)

// web calls POST /v1/check.
type web struct {
	config Config
	client *http.Client
}

// maxAnswer caps response bodies, in bytes.
const maxAnswer = 16 << 20

func openHTTP(c Config) (API, error) { return &web{c, newHTTPClient(&c)}, nil }

// newHTTPClient keeps a connection to each node for every caller.
func newHTTPClient(c *Config) *http.Client {
	return &http.Client{
		Timeout: c.Timeout,
		Transport: &http.Transport{
			MaxIdleConns: load.MaxCallers, MaxIdleConnsPerHost: load.MaxCallers, DisableCompression: true,
			TLSClientConfig: c.TLS,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Nodes implements load.Target.
func (w *web) Nodes() int { return len(w.config.Addrs) }

// Close implements API.
func (w *web) Close() error {
	w.client.CloseIdleConnections()
	return nil
}

// NewCaller implements load.Target.
func (w *web) NewCaller(checks int) load.Caller {
	c := &webCaller{web: w, checks: make([]webCheck, checks)}
	for i := range c.checks {
		c.checks[i] = webCheck{Domain: w.config.Domain, Descriptor: []webEntry{{Key: w.config.Key}}}
		for _, l := range w.config.Limits {
			c.checks[i].Limits = append(c.checks[i].Limits, webLimit{l.Count, l.Period.Seconds()})
		}
	}
	return c
}

type webCaller struct {
	*web
	checks []webCheck
	body   bytes.Buffer
}

type webCheck struct {
	Domain     string     `json:"domain"`
	Descriptor []webEntry `json:"descriptor"`
	Limits     []webLimit `json:"limits,omitempty"`
}

type webEntry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type webLimit struct {
	Count  int64   `json:"count"`
	Period float64 `json:"period"`
}

// webDecision is the relevant part of a decision.
type webDecision struct {
	Allowed bool   `json:"allowed"`
	Source  string `json:"source"`
	Error   *struct {
		Field   string `json:"field"`
		Message string `json:"message"`
	} `json:"error"`
}

// Call implements load.Caller.
func (c *webCaller) Call(ctx context.Context, node int, keys []string, seen *load.Counts) error {
	for i, k := range keys {
		c.checks[i].Descriptor[0].Value = k
	}
	var request any = &c.checks[0]
	if len(keys) > 1 {
		request = map[string]any{"checks": c.checks}
	}
	c.body.Reset()
	if err := json.NewEncoder(&c.body).Encode(request); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.config.url(node, "/v1/check"), &c.body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if err := c.show(req, "Authorization", "Bearer "); err != nil {
		return err
	}
	a, err := fetch(c.client, req)
	if err != nil {
		return err
	}
	if len(keys) > 1 {
		return countMany(a, len(keys), seen)
	}
	return countOne(a, seen)
}

// show sets a header to prefix and the token, if any.
func (w *web) show(req *http.Request, header, prefix string) error {
	if w.config.Token == nil {
		return nil
	}
	// The rule for connections without TLS is the same for all APIs.
	shown, err := sluicegrpc.TokenCredentials(w.config.Token, w.config.TokenInClear).GetRequestMetadata(req.Context(), req.URL.String())
	if err != nil {
		return err
	}
	req.Header.Set(header, prefix+strings.TrimPrefix(shown["authorization"], "Bearer "))
	return nil
}

// answer is a node's response.
type answer struct {
	status  int
	limited bool // its headers are about a limit, so it is a decision and no failure
	body    []byte
}

// fetch reads the body to its end, so that the connection is used again.
func fetch(client *http.Client, req *http.Request) (a answer, err error) {
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	a.status, a.limited = res.StatusCode, res.Header.Get("RateLimit-Policy") != ""
	a.body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return a, errors.Join(err, res.Body.Close())
}

// countOne adds the response to one check.
func countOne(a answer, seen *load.Counts) error {
	if a.status != http.StatusOK {
		return problem(a)
	}
	var d webDecision
	if err := json.Unmarshal(a.body, &d); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	seen.Count(load.SourceNamed(d.Source), d.Allowed)
	return nil
}

// countMany adds the response to so many checks.
func countMany(a answer, want int, seen *load.Counts) error {
	if a.status != http.StatusOK {
		return problem(a)
	}
	var all struct {
		Decisions []webDecision `json:"decisions"`
	}
	if err := json.Unmarshal(a.body, &all); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if n := len(all.Decisions); n != want {
		return fmt.Errorf("%d decisions for %d checks", n, want)
	}
	for _, d := range all.Decisions {
		if d.Error != nil {
			seen.Fail(1, fmt.Errorf("%s: %s", cmp.Or(d.Error.Field, "check"), d.Error.Message))
			continue
		}
		seen.Count(load.SourceNamed(d.Source), d.Allowed)
	}
	return nil
}

// problem returns a response without a decision as an error.
func problem(a answer) error {
	var p struct{ Title, Detail, Field string }
	text := http.StatusText(a.status)
	if json.Unmarshal(a.body, &p) == nil {
		text = cmp.Or(p.Detail, p.Title, text)
	} else if line, _, _ := strings.Cut(string(a.body), "\n"); len(line) < 200 && !strings.HasPrefix(line, "<") { // of net/http, not a proxy's page
		text = cmp.Or(line, text)
	}
	if p.Field != "" {
		text = p.Field + ": " + text
	}
	return fmt.Errorf("status %d: %s", a.status, text)
}

// authorize calls GET /v1/authorize/DOMAIN/, as a proxy that appends the path. A header has the key; the rule file makes
// the descriptor of it.
type authorize struct{ web }

func openAuthorize(c Config) (API, error) {
	if c.Header == "" {
		return nil, errors.New("header: is empty; name the header that the domain's authorize makes a descriptor of")
	}
	return &authorize{web{c, newHTTPClient(&c)}}, nil
}

// NewCaller implements load.Target.
func (c *authorize) NewCaller(int) load.Caller { return c }

// Call implements load.Caller.
func (c *authorize) Call(ctx context.Context, node int, keys []string, seen *load.Counts) error {
	for _, k := range keys {
		target := c.config.url(node, "/v1/authorize/"+url.PathEscape(c.config.Domain)+"/")
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			return err
		}
		req.Header.Set(c.config.Header, k)
		if err := c.show(req, "Sluice-Token", ""); err != nil {
			return err
		}
		a, err := fetch(c.client, req)
		switch {
		case err != nil:
			return err
		case a.status == http.StatusOK && a.limited:
			seen.Count(load.Untold, true)
		case a.status == http.StatusOK:
			seen.Count(load.Unmatched, true)
		case a.limited:
			seen.Count(load.Untold, false)
		default:
			return fmt.Errorf("header %s: %w", c.config.Header, problem(a))
		}
	}
	return nil
}
