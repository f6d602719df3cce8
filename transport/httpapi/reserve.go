package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// The fields of each body.
var (
	budgetFields   = checkFields[:3] // of each check
	reserveOptions = []string{"units", "least", "ttl", "hold", "wait"}
	spendFields    = []string{"reservation", "units"}
	extendFields   = []string{"reservation", "more", "ttl"}
	settleFields   = []string{"reservation", "actual"}
	heldFields     = checkFields[:2]
)

// reserved is the response to POST /v1/reserve. ExpiresAfter is in seconds.
type reserved struct {
	decisions
	Reservation  string  `json:"reservation,omitempty"`
	Units        int64   `json:"units,omitempty"`
	ExpiresAfter float64 `json:"expires_after,omitempty"`
}

// reserve serves POST /v1/reserve.
func (d *api) reserve(w http.ResponseWriter, r *http.Request) error {
	b := limiter.NewBatch()
	defer b.Release()
	pass, deny, err := d.begin(r, b, true)
	if err != nil {
		return err
	}
	var request limiter.ReserveRequest
	many := false
	if err := d.withBody(w, r, func(body []byte) (err error) {
		many, err = readCall(body, b, budgetFields, reserveOptions, func(r *reader, name string) (err error) {
			switch name {
			case "units":
				request.Units, err = r.integer(64)
			case "least":
				request.Least, err = r.integer(64)
			case "ttl":
				request.TTL, err = r.seconds()
			case "hold":
				request.Hold, err = r.boolean()
			case "wait":
				request.Wait, err = r.seconds()
			}
			return err
		})
		return err
	}); err != nil {
		return err
	}
	if rejected := pass.Restrict(b); rejected != nil {
		return rejected
	}
	res, err := d.Limiter.Reserve(r.Context(), b, request)
	if err != nil {
		return err
	}
	if e := b.Results[0].Err; e != nil && !many {
		return e
	}
	all := decisionsOf(w, b)
	answerAll(w, deny, all, reserved{all, res.ID, res.Units, res.ExpiresAfter.Seconds()})
	return nil
}

// reservationCall is the body of a call about a reservation. number is the field that the call is about.
type reservationCall struct {
	id     string
	number int64
	ttl    time.Duration
}

// onReservation returns the handler of a call about a reservation. Its body has these fields, of which the second is a number; call
// returns the response.
func (d *api) onReservation(fields []string, call func(context.Context, reservationCall) (any, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
		if rejected != nil {
			return rejected
		}
		if r.URL.RawQuery != "" {
			return &limiter.Error{Code: limiter.Invalid, Message: "unknown query " + clip(r.URL.RawQuery) + "; want none"}
		}
		var q reservationCall
		if err := d.readObject(w, r, fields, func(r *reader, name string) (err error) {
			switch name {
			case "reservation":
				q.id, err = r.text()
			case "ttl":
				q.ttl, err = r.seconds()
			default:
				q.number, err = r.integer(64)
			}
			return err
		}); err != nil {
			return err
		}
		if err := pass.MayUse(d.Limiter.ReservationDomains, q.id); err != nil {
			return err
		}
		res, err := call(r.Context(), q)
		if err != nil {
			return err
		}
		httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, res)
		return nil
	}
}

func (d *api) spend() handler {
	return d.onReservation(spendFields, func(ctx context.Context, q reservationCall) (any, error) {
		return d.Limiter.Spend(ctx, q.id, q.number)
	})
}

// extended is the response to POST /v1/extend. Times are in seconds.
type extended struct {
	Allowed      bool    `json:"allowed"`
	Units        int64   `json:"units"`
	ExpiresAfter float64 `json:"expires_after"`
	RetryAfter   float64 `json:"retry_after,omitempty"`
}

func (d *api) extend() handler {
	return d.onReservation(extendFields, func(ctx context.Context, q reservationCall) (any, error) {
		x, err := d.Limiter.Extend(ctx, q.id, q.number, q.ttl)
		if x.Allowed || x.RetryAfter == bucket.Never {
			x.RetryAfter = 0
		}
		return extended{x.Allowed, x.Units, x.ExpiresAfter.Seconds(), x.RetryAfter.Seconds()}, err
	})
}

func (d *api) settle() handler {
	return d.onReservation(settleFields, func(ctx context.Context, q reservationCall) (any, error) {
		return d.Limiter.Settle(ctx, q.id, q.number)
	})
}

// heldJSON is the response to POST /v1/held.
type heldJSON struct {
	Holdings []holding `json:"holdings"`
	Count    int       `json:"count"`
	Units    int64     `json:"units"`
}

// holding is limiter.Holding. Times are in seconds.
type holding struct {
	ID           string  `json:"id"`
	Use          string  `json:"use"`
	Caller       string  `json:"caller,omitempty"`
	Units        int64   `json:"units"`
	Since        float64 `json:"since"`
	ExpiresAfter float64 `json:"expires_after"`
}

// held serves POST /v1/held.
func (d *api) held(w http.ResponseWriter, r *http.Request) error {
	pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
	if rejected != nil {
		return rejected
	}
	var q limiter.Check
	if err := d.readObject(w, r, heldFields, func(r *reader, name string) error { return readCheckField(r, &q, name) }); err != nil {
		return err
	}
	if rejected := pass.May(access.Read, q.Domain); rejected != nil {
		return rejected
	}
	list, count, units, err := d.Limiter.Held(r.Context(), &q)
	if err != nil {
		return err
	}
	res := heldJSON{Holdings: make([]holding, len(list)), Count: count, Units: units}
	for i, h := range list {
		res.Holdings[i] = holding{strconv.FormatUint(h.ID, 16), h.Use, h.Caller, h.Units, h.Since.Seconds(), h.ExpiresAfter.Seconds()}
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, res)
	return nil
}
