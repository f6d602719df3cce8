package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// defaultTop is how many keys are listed where the caller does not say.
const defaultTop = 20

// topJSON is the body of GET /v1/top. Times are in seconds.
type topJSON struct {
	By      string       `json:"by"`
	Covers  float64      `json:"covers"`
	Keys    []topKeyJSON `json:"keys"`
	Nodes   []string     `json:"nodes"`
	Missing []string     `json:"missing"`
}

type topKeyJSON struct {
	Domain     string      `json:"domain"`
	Descriptor []entryJSON `json:"descriptor"`
	Rule       string      `json:"rule,omitempty"`
	Cut        bool        `json:"cut,omitempty"`
	Count      uint64      `json:"count"`
	Error      uint64      `json:"error,omitempty"`
	PerSecond  float64     `json:"per_second"`
}

type entryJSON struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// top serves GET /v1/top.
func (d *door) top(w http.ResponseWriter, r *http.Request) {
	pass, err := d.enter(r)
	var q limiter.TopQuery
	if err == nil {
		q, err = readTop(r.URL.RawQuery)
	}
	var top limiter.Top
	if err == nil {
		if refused := pass.May(access.Read, q.Domain); refused != nil {
			err = refused
		}
	}
	if err == nil {
		q.Operator = pass.IsOperator(r.Context())
		top, err = d.Limiter.Top(r.Context(), q)
	}
	if err != nil {
		httpanswer.Refuse(w, problemOf(err))
		return
	}
	body := topJSON{
		By: top.By.String(), Covers: top.Covers.Seconds(), Keys: make([]topKeyJSON, len(top.Keys)),
		Nodes: append([]string{}, top.Nodes...), Missing: append([]string{}, top.Missing...),
	}
	for i := range top.Keys {
		k := &top.Keys[i]
		j := topKeyJSON{
			Domain: k.Domain, Descriptor: make([]entryJSON, len(k.Descriptor)), Rule: k.Rule, Cut: k.Cut,
			Count: k.Count, Error: k.Error, PerSecond: k.PerSecond,
		}
		for e := range k.Descriptor {
			j.Descriptor[e] = entryJSON(k.Descriptor[e])
		}
		body.Keys[i] = j
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, body)
}

// readTop reads the query of GET /v1/top.
func readTop(query string) (q limiter.TopQuery, err error) {
	q.N = defaultTop
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, &limiter.Error{Code: limiter.Invalid, Message: "malformed query: " + err.Error()}
	}
	for name, list := range values {
		invalid := func(format string, args ...any) error {
			return &limiter.Error{Code: limiter.Invalid, Field: clip(name), Message: fmt.Sprintf(format, args...)}
		}
		if len(list) > 1 {
			return q, invalid("is there %d times", len(list))
		}
		value := list[0]
		switch name {
		case "by":
			switch value {
			case limiter.ByLimited.String():
			case limiter.ByFrequent.String():
				q.By = limiter.ByFrequent
			default:
				return q, invalid("%q; want limited or frequent", clip(value))
			}
		case "n":
			if q.N, err = strconv.Atoi(value); err != nil {
				return q, invalid("%q; want 1 to %d", clip(value), limiter.MaxTop)
			}
		case "domain":
			q.Domain = value
		default:
			return q, invalid("unknown parameter; want one of by, n, domain")
		}
	}
	return q, nil
}
