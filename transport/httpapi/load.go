package httpapi

import (
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// loadFields are those of the body of PUT /v1/pools/DOMAIN/POOL/load.
var loadFields = []string{"load", "reporter"}

// poolLoad is the answer to it. Expires is in seconds.
type poolLoad struct {
	Load    float64 `json:"load"`
	Expires float64 `json:"expires"`
}

// load serves PUT /v1/pools/DOMAIN/POOL/load.
func (d *door) load(w http.ResponseWriter, r *http.Request) {
	report := limiter.LoadReport{Domain: r.PathValue("domain"), Pool: r.PathValue("pool")}
	pass, refused := d.Guard.Request(r, limiter.HTTPDoor)
	if refused == nil {
		refused = pass.May(access.Charge, report.Domain)
	}
	if refused != nil {
		httpanswer.Refuse(w, problemOf(refused))
		return
	}
	err := d.withBody(w, r, func(body []byte) error { return readLoad(body, &report) })
	var l limiter.PoolLoad
	if err == nil {
		l, err = d.Limiter.ReportLoad(r.Context(), report)
	}
	if err != nil {
		httpanswer.Refuse(w, problemOf(err))
		return
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, poolLoad{Load: l.Load, Expires: l.Expires.Seconds()})
}

// readLoad reads a report's body.
func readLoad(body []byte, to *limiter.LoadReport) error {
	r, err := newReader(body)
	if err != nil {
		return err
	}
	given := false
	err = r.object(loadFields, func(name string) (err error) {
		if name == "reporter" {
			to.Reporter, err = r.text()
			return err
		}
		given = true
		n, err := r.number()
		if err != nil {
			return err
		}
		if to.Load, err = strconv.ParseFloat(n, 64); err != nil {
			return r.fail("%s is out of range; want 0 to 1", clip(n))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !given {
		return &limiter.Error{Code: limiter.Invalid, Field: "load", Message: "is missing; want 0 to 1"}
	}
	return r.end()
}
