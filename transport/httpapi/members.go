package httpapi

import (
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// membership is the body of GET /v1/members.
type membership struct {
	Self       string     `json:"self"`
	Ring       string     `json:"ring"`
	Partitions int        `json:"partitions"`
	VoterSet   *voterSet  `json:"voter_set,omitempty"`
	MayDecide  bool       `json:"may_decide"`
	Reason     string     `json:"reason,omitempty"`
	Unreached  []string   `json:"unreached,omitempty"`
	Holdings   holdings   `json:"holdings"`
	LostRules  []lostRule `json:"lost_rules,omitempty"`
	// ClocksAgree is left out if it is not known. ClockCorrection is in seconds.
	ClocksAgree     *bool        `json:"clocks_agree,omitempty"`
	ClockCorrection float64      `json:"clock_correction,omitempty"`
	Members         []memberJSON `json:"members"`
}

type voterSet struct {
	ClusterID string   `json:"cluster_id"`
	Version   uint64   `json:"version"`
	Members   []string `json:"members"`
}

type holdings struct {
	Holding       int `json:"holding"`
	Unprotected   int `json:"unprotected"`
	BelowReplicas int `json:"below_replicas"`
	HandingOver   int `json:"handing_over"`
	Copies        int `json:"copies"`
	Claims        int `json:"claims"`
	Divergent     int `json:"divergent"`
	Lost          int `json:"lost"`
}

// lostRule is limiter.LostRule; Left is in seconds.
type lostRule struct {
	Domain string  `json:"domain"`
	Rule   string  `json:"rule"`
	Left   float64 `json:"left"`
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
	Zone       string `json:"zone,omitempty"`
	Partitions int    `json:"partitions"`
	Holds      int    `json:"holds"`
	Counted    bool   `json:"counted"`
	Lives      bool   `json:"lives"`
	// Silent is in seconds; left out if it is not known.
	Silent *float64 `json:"silent,omitempty"`
	// ClockAhead is in seconds; left out if it is not known.
	ClockAhead *float64 `json:"clock_ahead,omitempty"`
}

// members serves GET /v1/members.
func (d *api) members(w http.ResponseWriter, r *http.Request) {
	if _, err := d.enter(r); err != nil {
		httpanswer.Reject(w, problemOf(err))
		return
	}
	m := d.Limiter.Members(r.Context())
	body := membership{
		Self: m.Self, Ring: m.Ring, Partitions: m.Partitions, Members: make([]memberJSON, len(m.Members)),
		VoterSet: voterSetOf(m.Set), MayDecide: m.MayDecide, Reason: m.Reason, Unreached: m.Unreached, Holdings: holdings(m.Holdings),
		ClockCorrection: m.Clocks.Correction.Seconds(),
	}
	if m.Clocks.Known {
		body.ClocksAgree = &m.Clocks.Agree
	}
	for _, x := range m.LostRules {
		body.LostRules = append(body.LostRules, lostRule{x.Domain, x.Rule, x.Left.Seconds()})
	}
	for i := range m.Members {
		body.Members[i] = memberOf(&m.Members[i])
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, body)
}

func memberOf(m *limiter.Member) memberJSON {
	j := memberJSON{
		Name: m.Name, Boot: m.Boot, State: m.StateName(),
		Gossip: m.Gossip, Peer: m.Peer, GRPC: m.GRPC, HTTP: m.HTTP,
		Version: m.Version, Zone: m.Zone, Partitions: m.Partitions, Holds: m.Holds, Counted: m.Counted, Lives: m.Lives,
	}
	if m.Silent >= 0 {
		j.Silent = new(m.Silent.Seconds())
	}
	if m.Ahead != nil {
		j.ClockAhead = new(m.Ahead.Seconds())
	}
	return j
}

// voterSetOf returns nil for no set.
func voterSetOf(s limiter.VoterSet) *voterSet {
	if s.Version == 0 {
		return nil
	}
	return (*voterSet)(&s)
}

// forgetFields are those of the body of POST /v1/members/forget.
var forgetFields = []string{"name"}

// forgotten is the answer to POST /v1/members/forget.
type forgotten struct {
	VoterSet *voterSet `json:"voter_set,omitempty"`
}

// forget serves POST /v1/members/forget.
func (d *api) forget(w http.ResponseWriter, r *http.Request) {
	pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
	if rejected == nil {
		rejected = pass.Operate(r.Context(), access.Admin, "")
	}
	if rejected != nil {
		httpanswer.Reject(w, problemOf(rejected))
		return
	}
	var name string
	err := d.withBody(w, r, func(body []byte) (err error) {
		name, err = readName(body)
		return err
	})
	var set limiter.VoterSet
	if err == nil {
		set, err = d.Limiter.Forget(r.Context(), name)
	}
	if err != nil {
		httpanswer.Reject(w, problemOf(err))
		return
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, forgotten{voterSetOf(set)})
}

// readName reads the body of POST /v1/members/forget.
func readName(body []byte) (name string, err error) {
	r, err := newReader(body)
	if err != nil {
		return "", err
	}
	err = r.object(forgetFields, func(string) (err error) {
		name, err = r.text()
		return err
	})
	if err != nil {
		return "", err
	}
	return name, r.end()
}

// loadFields are those of the body of PUT /v1/pools/DOMAIN/POOL/load.
var loadFields = []string{"load", "reporter"}

// poolLoad is the answer to it. Expires is in seconds.
type poolLoad struct {
	Load    float64 `json:"load"`
	Expires float64 `json:"expires"`
}

// load serves PUT /v1/pools/DOMAIN/POOL/load.
func (d *api) load(w http.ResponseWriter, r *http.Request) {
	report := limiter.LoadReport{Domain: r.PathValue("domain"), Pool: r.PathValue("pool")}
	pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
	if rejected == nil {
		rejected = pass.May(access.Charge, report.Domain)
	}
	if rejected != nil {
		httpanswer.Reject(w, problemOf(rejected))
		return
	}
	err := d.withBody(w, r, func(body []byte) error { return readLoad(body, &report) })
	var l limiter.PoolLoad
	if err == nil {
		l, err = d.Limiter.ReportLoad(r.Context(), report)
	}
	if err != nil {
		httpanswer.Reject(w, problemOf(err))
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
