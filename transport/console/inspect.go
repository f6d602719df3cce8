package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
	"github.com/sluicecluster/sluice/transport/internal/httpbody"
)

// maxBody is the largest body, in bytes. The longest descriptor fits, with all its characters escaped.
const maxBody = 1 << 20

// asked is the body of POST /console/api/inspect and /console/api/inspect/reset.
type asked struct {
	Domain     string             `json:"domain"`
	Descriptor []httpanswer.Entry `json:"descriptor"`
}

// readJSON reads the body of a call into v. Its content type must be JSON: pages of other sites cannot send that without a
// preflight request.
func (a *API) readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != httpanswer.TypeJSON {
		return &statusError{http.StatusUnsupportedMediaType, "want Content-Type: application/json"}
	}
	err := httpbody.Read(w, r, maxBody, a.Memory, entries, func(body []byte) error {
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			return err
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return errors.New("more after the end of the JSON value")
		}
		return nil
	})
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &statusError{http.StatusRequestEntityTooLarge, "the body is larger than 1 MiB"}
	}
	if code, text, ok := httpbody.Status(err); ok {
		return &statusError{code, text}
	}
	return &limiter.Error{Code: limiter.Invalid, Message: "invalid body: " + err.Error()}
}

// entries is what the parts of a descriptor take.
var entries = httpbody.Shape{Objects: []httpbody.Object{{Bytes: 4 * limiter.EntryBytes}}, Text: 16}

// read reads the body of a call about a descriptor.
func (a *API) read(w http.ResponseWriter, r *http.Request) (c limiter.Check, err error) {
	var q asked
	if err := a.readJSON(w, r, &q); err != nil {
		return c, err
	}
	c = limiter.Check{Domain: q.Domain, Descriptor: make([]rules.Entry, len(q.Descriptor))}
	for i, e := range q.Descriptor {
		c.Descriptor[i] = rules.Entry(e)
	}
	return c, nil
}

// inspection is the response to POST /console/api/inspect. Times are in seconds.
type inspection struct {
	Domain      string             `json:"domain"`
	Descriptor  []httpanswer.Entry `json:"descriptor"`
	Shown       []httpanswer.Entry `json:"shown"`
	Known       bool               `json:"known"`
	Reason      string             `json:"reason"`
	Levels      []tried            `json:"levels"`
	Rule        *rule              `json:"rule,omitempty"`
	Partition   int                `json:"partition"`
	Owner       string             `json:"owner"`
	Generation  uint64             `json:"generation"`
	Replicas    []string           `json:"replicas"`
	InitialSync []string           `json:"initial_sync"`
	Counted     bool               `json:"counted"`
	Limits      []standing         `json:"limits"`
	Grants      int                `json:"grants"`
	Granted     int64              `json:"granted"`
	Held        []held             `json:"held"`
	Leases      []limiter.Lease    `json:"leases"`
	Denying     []string           `json:"denying"`
	Missing     []string           `json:"missing"`
	MayReset    bool               `json:"may_reset"` // by this caller
}

// tried is one level of a descriptor, and the levels of rules that it was compared with.
type tried struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	Tries []try  `json:"tries"`
}

type try struct {
	Written string `json:"written"`
	How     string `json:"how"`
	Matched bool   `json:"matched"`
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
}

// held is an open reservation, slot or lease.
type held struct {
	Use          string  `json:"use"`
	Caller       string  `json:"caller"`
	Units        int64   `json:"units"`
	Since        float64 `json:"since"` // 0 if it is not known
	ExpiresAfter float64 `json:"expires_after"`
}

type standing struct {
	Name       string  `json:"name"`
	Text       string  `json:"text"`
	Limit      int64   `json:"limit"`
	Spent      int64   `json:"spent"`
	Remaining  int64   `json:"remaining"`
	ResetAfter float64 `json:"reset_after"`
}

// inspect serves POST /console/api/inspect.
func (a *API) inspect(w http.ResponseWriter, r *http.Request) error {
	c, err := a.read(w, r)
	if err != nil {
		return err
	}
	pass, err := a.enter(r, access.Read, c.Domain)
	if err != nil {
		return err
	}
	x, err := a.Limiter.Inspect(r.Context(), &c)
	if err != nil {
		return err
	}
	answer := inspectionOf(&c, &x)
	answer.MayReset = x.Owner != "" && pass.Allows(access.Reset, c.Domain)
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, answer)
	return nil
}

func inspectionOf(c *limiter.Check, x *limiter.Inspection) *inspection {
	texts := func(list []string) []string { return append([]string{}, list...) }
	a := &inspection{
		Domain: c.Domain, Descriptor: httpanswer.Entries(c.Descriptor), Shown: httpanswer.Entries(x.Shown),
		Known: x.Explanation.Known, Reason: x.Explanation.Reason, Levels: []tried{},
		Partition: x.Partition, Owner: x.Owner, Generation: x.Gen, Replicas: texts(x.Replicas), InitialSync: texts(x.InitialSync),
		Counted: x.Counted, Limits: []standing{}, Grants: x.Grants, Granted: x.Granted, Leases: append([]limiter.Lease{}, x.Leases...),
		Denying: texts(x.Denying), Missing: texts(x.Missing), Held: []held{},
	}
	for _, h := range x.Held {
		a.Held = append(a.Held, held{h.Use, h.Caller, h.Units, h.Since.Seconds(), h.ExpiresAfter.Seconds()})
	}
	for _, l := range x.Explanation.Levels {
		one := tried{Key: l.Entry.Key, Value: l.Entry.Value, Tries: []try{}}
		for _, t := range l.Tries {
			one.Tries = append(one.Tries, try{t.Written, string(t.How), t.Matched, t.File, t.Line})
		}
		a.Levels = append(a.Levels, one)
	}
	if x.Rule != nil {
		a.Rule = ruleOf(x.Rule)
		for i, l := range x.Limits {
			a.Limits = append(a.Limits, standing{x.Rule.LimitName(i), limitText(x.Rule.Limits.At(i)), l.Limit, l.Spent, l.Remaining, l.ResetAfter.Seconds()})
		}
	}
	return a
}

// wasReset is the response to POST /console/api/inspect/reset.
type wasReset struct {
	Rule  string `json:"rule"`
	Owner string `json:"owner"`
}

// reset serves POST /console/api/inspect/reset.
func (a *API) reset(w http.ResponseWriter, r *http.Request) error {
	c, err := a.read(w, r)
	if err != nil {
		return err
	}
	if _, err := a.enter(r, access.Reset, c.Domain); err != nil {
		return err
	}
	b := limiter.NewBatch()
	defer b.Release()
	one := b.Add()
	one.Domain, one.Descriptor, one.Verb = c.Domain, append(one.Descriptor, c.Descriptor...), bucket.Reset
	if err := a.Limiter.Check(r.Context(), b); err != nil {
		return err
	}
	if e := b.Results[0].Err; e != nil {
		return e
	}
	owner := b.Results[0].Owner
	if owner == "" {
		return &limiter.Error{Code: limiter.NotFound, Message: "there is nothing to reset: no limit applies"}
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, wasReset{b.Results[0].RuleName(), owner})
	return nil
}
