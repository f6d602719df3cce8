package httpapi

import (
	"net/http"

	"github.com/sluice-project/sluice/transport"
)

// check serves POST /v1/check.
func (d *door) check(w http.ResponseWriter, r *http.Request) {
	b := transport.NewBatch()
	defer b.Release()
	many, err := d.read(w, r, b, checkFields, callOptions)
	if err == nil {
		err = d.Limiter.Check(r.Context(), b)
	}
	switch {
	case err != nil:
		refuse(w, problemOf(err))
	case many:
		answerMany(w, b)
	default:
		answerOne(w, b)
	}
}

// reset serves POST /v1/reset.
func (d *door) reset(w http.ResponseWriter, r *http.Request) {
	b := transport.NewBatch()
	defer b.Release()
	many, err := d.read(w, r, b, resetFields, nil)
	if err == nil {
		err = d.Limiter.Reset(r.Context(), b)
	}
	switch {
	case err != nil:
		refuse(w, problemOf(err))
	case many:
		all := resets{make([]reset, len(b.Results))}
		for i := range b.Results {
			all.Resets[i] = resetOf(&b.Results[i], i)
		}
		write(w, http.StatusOK, typeJSON, all)
	case b.Results[0].Err != nil:
		refuse(w, problemOf(b.Results[0].Err))
	default:
		write(w, http.StatusOK, typeJSON, resetOf(&b.Results[0], 0))
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

func resetOf(r *transport.Result, i int) reset {
	if r.Err != nil {
		return reset{Rule: r.RuleName(), Error: faultAt(r.Err, i)}
	}
	return reset{Rule: r.RuleName(), Source: sourceOf(r.Source), Holder: r.Holder}
}

// read reads a call into b.
func (d *door) read(w http.ResponseWriter, r *http.Request, b *transport.Batch, fields, options []string) (many bool, err error) {
	err = d.withBody(w, r, func(body []byte) error {
		many, err = readCall(body, b, fields, options)
		return err
	})
	return many, err
}

// membership is the body of GET /v1/members.
type membership struct {
	Self       string       `json:"self"`
	Ring       string       `json:"ring"`
	Partitions int          `json:"partitions"`
	Members    []memberJSON `json:"members"`
}

type memberJSON struct {
	Name       string `json:"name"`
	Boot       string `json:"boot"`
	State      string `json:"state"`
	Gossip     string `json:"gossip_address"`
	Peer       string `json:"peer_address"`
	GRPC       string `json:"grpc_address"`
	HTTP       string `json:"http_address"`
	Version    string `json:"version"`
	Partitions int    `json:"partitions"`
}

// members serves GET /v1/members.
func (d *door) members(w http.ResponseWriter, _ *http.Request) {
	m := d.Limiter.Members()
	body := membership{Self: m.Self, Ring: m.Ring, Partitions: m.Partitions, Members: make([]memberJSON, len(m.Members))}
	for i, one := range m.Members {
		body.Members[i] = memberJSON{
			Name: one.Name, Boot: one.Boot, State: one.State.String(),
			Gossip: one.Gossip, Peer: one.Peer, GRPC: one.GRPC, HTTP: one.HTTP,
			Version: one.Version, Partitions: one.Partitions,
		}
	}
	write(w, http.StatusOK, typeJSON, body)
}
