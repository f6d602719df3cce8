package httpapi

import (
	"net/http"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// check serves POST /v1/check.
func (d *door) check(w http.ResponseWriter, r *http.Request) {
	b := limiter.NewBatch()
	defer b.Release()
	b.Door, b.Traceparent = limiter.HTTPDoor, r.Header.Get(transport.HeaderTraceparent)
	pass, err := d.enter(r)
	many := false
	if err == nil {
		many, err = d.read(w, r, b, checkFields, callOptions)
	}
	if err == nil {
		err = restrict(&pass, b)
	}
	if err == nil {
		err = d.Limiter.Check(r.Context(), b)
	}
	switch {
	case err != nil:
		httpanswer.Refuse(w, problemOf(err))
	case many:
		answerMany(w, b)
	default:
		answerOne(w, b)
	}
}

// reset serves POST /v1/reset.
func (d *door) reset(w http.ResponseWriter, r *http.Request) {
	b := limiter.NewBatch()
	defer b.Release()
	b.Door, b.Traceparent = limiter.HTTPDoor, r.Header.Get(transport.HeaderTraceparent)
	pass, err := d.enter(r)
	many := false
	if err == nil {
		many, err = d.read(w, r, b, resetFields, nil)
	}
	if err == nil {
		for i := range b.Checks {
			b.Checks[i].Verb = bucket.Reset
		}
		err = restrict(&pass, b)
	}
	if err == nil {
		err = d.Limiter.Reset(r.Context(), b)
	}
	switch {
	case err != nil:
		httpanswer.Refuse(w, problemOf(err))
	case many:
		all := resets{make([]reset, len(b.Results))}
		for i := range b.Results {
			all.Resets[i] = resetOf(&b.Results[i], i)
		}
		httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, all)
	case b.Results[0].Err != nil:
		httpanswer.Refuse(w, problemOf(b.Results[0].Err))
	default:
		httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, resetOf(&b.Results[0], 0))
	}
}

// resets says what became of many counters.
type resets struct {
	Resets []reset `json:"resets"`
}

// reset says who forgot a counter. There is none to forget where the source is
// unruled.
type reset struct {
	Rule   string `json:"rule,omitempty"`
	Source string `json:"source,omitempty"`
	Holder string `json:"holder,omitempty"`
	Error  *fault `json:"error,omitempty"`
}

func resetOf(r *limiter.Result, i int) reset {
	if r.Err != nil {
		return reset{Rule: r.RuleName(), Error: faultAt(r.Err, i)}
	}
	return reset{Rule: r.RuleName(), Source: r.Source.String(), Holder: r.Holder}
}

// read reads a call into b.
func (d *door) read(w http.ResponseWriter, r *http.Request, b *limiter.Batch, fields, options []string) (many bool, err error) {
	err = d.withBody(w, r, func(body []byte) error {
		many, err = readCall(body, b, fields, options)
		return err
	})
	return many, err
}

// enter lets a request in. The error is an *limiter.Error.
func (d *door) enter(r *http.Request) (access.Pass, error) {
	pass, refused := d.Guard.Request(r, limiter.HTTPDoor)
	if refused != nil {
		return pass, refused
	}
	return pass, nil
}

// restrict is pass.Restrict; its error is no *limiter.Error that is nil.
func restrict(pass *access.Pass, b *limiter.Batch) error {
	if refused := pass.Restrict(b); refused != nil {
		return refused
	}
	return nil
}
