package httpapi

import (
	"net/http"
	"strconv"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// membership is the body of GET /admin/v1alpha1/members.
type membership struct {
	Self            string                  `json:"self"`
	Ring            string                  `json:"ring"`
	Partitions      int                     `json:"partitions"`
	VoterSet        *limiter.VoterSet       `json:"voter_set,omitempty"`
	MayDecide       bool                    `json:"may_decide"`
	Reason          string                  `json:"reason,omitempty"`
	Unreached       []string                `json:"unreached,omitempty"`
	PartitionCounts limiter.PartitionCounts `json:"partition_counts"`
	LostRules       []lostRule              `json:"lost_rules,omitempty"`
	Health          limiter.Health          `json:"health"`
	// ClocksAgree is left out if it is not known. ClockCorrection is in seconds.
	ClocksAgree     *bool        `json:"clocks_agree,omitempty"`
	ClockCorrection float64      `json:"clock_correction,omitempty"`
	Members         []memberJSON `json:"members"`
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
	Owned      int    `json:"owned"`
	Voter      bool   `json:"voter"`
	Alive      bool   `json:"alive"`
	// Silent is in seconds; left out if it is not known.
	Silent *float64 `json:"silent,omitempty"`
	// ClockAhead is in seconds; left out if it is not known.
	ClockAhead *float64 `json:"clock_ahead,omitempty"`
}

// members serves GET /admin/v1alpha1/members.
func (d *api) members(w http.ResponseWriter, r *http.Request) error {
	if _, rejected := d.Guard.Request(r, limiter.HTTPAPI); rejected != nil {
		return rejected
	}
	m := d.Limiter.Members(r.Context())
	body := membership{
		Self: m.Self, Ring: m.Ring, Partitions: m.Partitions, Members: make([]memberJSON, len(m.Members)),
		VoterSet: voterSetOf(m.Set), MayDecide: m.MayDecide, Reason: m.Reason, Unreached: m.Unreached, PartitionCounts: m.PartitionCounts,
		ClockCorrection: m.Clocks.Correction.Seconds(), Health: m.Health,
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
	return nil
}

// nodesJSON is the body of GET /v1/nodes. CheckTimeout is in seconds.
type nodesJSON struct {
	Self         string     `json:"self"`
	Nodes        []nodeJSON `json:"nodes"`
	CheckTimeout float64    `json:"check_timeout"`
	Features     []string   `json:"features"`
}

type nodeJSON struct {
	Name string `json:"name"`
	GRPC string `json:"grpc_address"`
	HTTP string `json:"http_address"`
	Zone string `json:"zone,omitempty"`
}

// nodes serves GET /v1/nodes.
func (d *api) nodes(w http.ResponseWriter, r *http.Request) error {
	if _, rejected := d.Guard.Request(r, limiter.HTTPAPI); rejected != nil {
		return rejected
	}
	m := d.Limiter.Members(r.Context())
	body := nodesJSON{Self: m.Self, Nodes: []nodeJSON{}, CheckTimeout: d.CheckTimeout.Seconds(), Features: limiter.Features}
	for i := range m.Members {
		if x := &m.Members[i]; x.Serves() {
			body.Nodes = append(body.Nodes, nodeJSON{x.Name, x.GRPC, x.HTTP, x.Zone})
		}
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, body)
	return nil
}

func memberOf(m *limiter.Member) memberJSON {
	j := memberJSON{
		Name: m.Name, Boot: m.Boot, State: m.StateName(),
		Gossip: m.Gossip, Peer: m.Peer, GRPC: m.GRPC, HTTP: m.HTTP,
		Version: m.Version, Zone: m.Zone, Partitions: m.Partitions, Owned: m.Owned, Voter: m.Voter, Alive: m.Alive,
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
func voterSetOf(s limiter.VoterSet) *limiter.VoterSet {
	if s.Version == 0 {
		return nil
	}
	return &s
}

// forgetFields are those of the body of POST /admin/v1alpha1/members/forget.
var forgetFields = []string{"name"}

// forgotten is the response to POST /admin/v1alpha1/members/forget.
type forgotten struct {
	VoterSet *limiter.VoterSet `json:"voter_set,omitempty"`
}

// forget serves POST /admin/v1alpha1/members/forget.
func (d *api) forget(w http.ResponseWriter, r *http.Request) error {
	pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
	if rejected == nil {
		rejected = pass.Operate(r.Context(), access.Admin, "")
	}
	if rejected != nil {
		return rejected
	}
	var name string
	err := d.readObject(w, r, forgetFields, func(r *reader, _ string) (err error) {
		name, err = r.text()
		return err
	})
	if err != nil {
		return err
	}
	set, err := d.Limiter.Forget(r.Context(), name)
	if err != nil {
		return err
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, forgotten{voterSetOf(set)})
	return nil
}

// poolLoad is the response to PUT /v1/pools/DOMAIN/POOL/load. Expires is in seconds.
type poolLoad struct {
	Load    float64 `json:"load"`
	Expires float64 `json:"expires"`
}

// load serves PUT /v1/pools/DOMAIN/POOL/load.
func (d *api) load(w http.ResponseWriter, r *http.Request) error {
	report := limiter.LoadReport{Domain: r.PathValue("domain"), Pool: r.PathValue("pool")}
	pass, rejected := d.Guard.Request(r, limiter.HTTPAPI)
	if rejected == nil {
		rejected = pass.May(access.Charge, report.Domain)
	}
	if rejected != nil {
		return rejected
	}
	given := false
	err := d.readObject(w, r, []string{"load", "reporter"}, func(r *reader, name string) (err error) {
		if name == "reporter" {
			report.Reporter, err = r.text()
			return err
		}
		given = true
		n, err := r.number()
		if err != nil {
			return err
		}
		if report.Load, err = strconv.ParseFloat(n, 64); err != nil {
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
	l, err := d.Limiter.ReportLoad(r.Context(), report)
	if err != nil {
		return err
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, poolLoad{Load: l.Load, Expires: l.Expires.Seconds()})
	return nil
}

// readObject reads a body that is one object with these fields.
func (d *api) readObject(w http.ResponseWriter, r *http.Request, fields []string, each func(r *reader, name string) error) error {
	return d.withBody(w, r, func(body []byte) error {
		in, err := newReader(body)
		if err != nil {
			return err
		}
		if err := in.object(fields, func(name string) error { return each(in, name) }); err != nil {
			return err
		}
		return in.end()
	})
}
