package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// problemOf maps the error of a body or of a call.
func problemOf(err error) httpanswer.Problem {
	if e, ok := errors.AsType[*bodyError](err); ok {
		p := httpanswer.NewProblem(http.StatusBadRequest, e.Error())
		p.Code, p.Field, p.Offset = limiter.Invalid.String(), e.Field, &e.Offset
		return p
	}
	if e, ok := errors.AsType[*limiter.Error](err); ok {
		return httpanswer.ProblemOf(e)
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return httpanswer.NewProblem(http.StatusRequestEntityTooLarge,
			"the body is larger than "+strconv.FormatInt(e.Limit, 10)+" bytes; split the call")
	}
	return httpanswer.NewProblem(http.StatusBadRequest, "the body could not be read: "+err.Error())
}
