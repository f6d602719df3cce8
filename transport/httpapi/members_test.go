package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
	"github.com/sluicecluster/sluice/transport/internal/httpbody"
)

// clustered returns an API to a node of which the cluster is o.
func clustered(t *testing.T, o limiter.Overview, forget func(context.Context, string) error) http.Handler {
	return newAPI(t, newLimiter(t, apitest.NewNode(t), func(c *limiter.Config) {
		c.Cluster.(*apitest.Cluster).Seen = func(context.Context) limiter.Overview { return o }
		c.Cluster.(*apitest.Cluster).Forgets = forget
	}))
}

const nothingHeld = `"partition_counts":{"owned":0,"unprotected":0,"below_replicas":0,"handing_over":0,"replicas":0,"taking_over":0,"divergent":0,"lost":0}`

// TestNodes: programs learn the nodes that decide checks, and what the responding node can do.
func TestNodes(t *testing.T) {
	o := limiter.Overview{View: &member.View{Self: "n2", Members: []member.Member{
		{Name: "n1", State: member.Serving, GRPC: "a:7460", HTTP: "a:7461", Zone: "z"}, {Name: "n2", State: member.Leaving, GRPC: "b:7460"},
	}}}
	l := newLimiter(t, apitest.NewNode(t), func(c *limiter.Config) {
		c.Cluster.(*apitest.Cluster).Seen = func(context.Context) limiter.Overview { return o }
	})
	w, _ := call(t, newAPI(t, l, func(c *Config) { c.CheckTimeout = 1500 * time.Millisecond }), "GET", "/v1/nodes", "")
	const want = `{"self":"n2","nodes":[{"name":"n1","grpc_address":"a:7460","http_address":"a:7461","zone":"z"}],` +
		`"check_timeout":1.5,"features":["idempotency_key","leases","reservations"]}`
	if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != want {
		t.Errorf("%d %s", w.Code, got)
	}
}

func TestMembers(t *testing.T) {
	for _, c := range []struct {
		name string
		o    limiter.Overview
		want string
		is   limiter.HealthStatus // which is cut out of want
	}{
		{"nothing known yet", limiter.Overview{}, `{"self":"","ring":"","partitions":0,"may_decide":false,` + nothingHeld + `,"members":[]}`, limiter.NoQuorum},
		{
			"alone, before there is a set",
			apitest.Alone,
			`{"self":"n1","ring":"","partitions":0,"may_decide":false,"reason":"no voter set is known yet",` + nothingHeld + `,"members":[` +
				`{"name":"n1","boot":"b1","state":"serving","gossip_address":"g","peer_address":"p","grpc_address":"r","http_address":"127.0.0.1:7461",` +
				`"version":"v1","partitions":0,"owned":0,"voter":false,"alive":true,"silent":0}]}`,
			limiter.NoQuorum,
		},
		{
			"a clock that is off",
			limiter.Overview{
				View:      &member.View{Self: "n1", Members: []member.Member{{Name: "n1", Boot: "b1", State: member.Serving}}},
				Standings: []limiter.Standing{{Name: "n1", Boot: "b1", Alive: true, Ahead: new(2 * time.Second)}},
				State:     limiter.State{Clocks: limiter.Clocks{Known: true, Agree: true, Correction: -2 * time.Second}, MayDecide: true},
			},
			`{"self":"n1","ring":"","partitions":0,"may_decide":true,` + nothingHeld + `,"clocks_agree":true,"clock_correction":-2,"members":[` +
				`{"name":"n1","boot":"b1","state":"serving","gossip_address":"","peer_address":"","grpc_address":"","http_address":"",` +
				`"version":"","partitions":0,"owned":0,"voter":false,"alive":true,"silent":0,"clock_ahead":2}]}`,
			limiter.Degraded,
		},
		{
			"two of three",
			apitest.TwoOfThree,
			`{"self":"n1","ring":"","partitions":0,"voter_set":{"cluster_id":"b1","version":4,"members":["n1","n2","n3"]},"may_decide":true,` +
				`"partition_counts":{"owned":500,"unprotected":1,"below_replicas":7,"handing_over":2,"replicas":3,"taking_over":4,"divergent":5,"lost":0},"members":[` +
				`{"name":"n1","boot":"b1","state":"serving","gossip_address":"","peer_address":"","grpc_address":"","http_address":"",` +
				`"version":"","zone":"a","partitions":0,"owned":500,"voter":true,"alive":true,"silent":0},` +
				`{"name":"n2","boot":"b2","state":"leaving","gossip_address":"","peer_address":"","grpc_address":"","http_address":"",` +
				`"version":"","partitions":0,"owned":521,"voter":true,"alive":false,"silent":90},` +
				`{"name":"n3","boot":"","state":"missing","gossip_address":"","peer_address":"","grpc_address":"","http_address":"",` +
				`"version":"","partitions":0,"owned":0,"voter":true,"alive":false}]}`,
			limiter.Degraded,
		},
	} {
		w, _ := call(t, clustered(t, c.o, nil), "GET", "/admin/v1alpha1/members", "")
		var body struct{ Health limiter.Health }
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		health, err := json.Marshal(body.Health)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Replace(strings.TrimSpace(w.Body.String()), `"health":`+string(health)+",", "", 1)
		if w.Code != 200 || got != c.want || body.Health.Status != c.is {
			t.Errorf("%s: %d %s\nwant %s, %s", c.name, w.Code, w.Body, c.want, c.is)
		}
	}
}

func TestForget(t *testing.T) {
	const n3 = `{"name":"n3"}`
	for _, c := range []struct {
		name, body string
		err        error
		status     int
		code, want string // of the problem; want is the body of an answer
	}{
		{"forgotten", n3, nil, 200, "", `{"voter_set":{"cluster_id":"b1","version":5,"members":["n1","n2"]}}`},
		{"no operator", n3, nil, 403, "forbidden", limiter.ErrNotOperator.Message},
		{"no operator, not read", `{`, nil, 403, "forbidden", limiter.ErrNotOperator.Message},
		{"empty body", "", nil, 400, "invalid", "at byte 0: empty body; want a JSON object"},
		{"no name", `{}`, nil, 400, "invalid", "name: empty"},
		{"name a number", `{"name":3}`, nil, 400, "invalid", "name (at byte 9): want a string, found a number"},
		{"another field", `{"node":"n3"}`, nil, 400, "invalid", `at byte 7: unknown field "node"; want one of name`},
		{"more behind it", n3 + n3, nil, 400, "invalid", "at byte 14: more after the end of the JSON object"},
		{"too large", `{"name":"` + strings.Repeat("n", httpbody.Most) + `"}`, nil, 413, "", "the body is larger than 4194304 bytes; split the call"},
		{"not counted", n3, member.ErrNotVoter, 404, "not_found", `cannot forget "n3": it is not in the voter set`},
		{"living", n3, member.ErrAlive, 409, "rejected", `cannot forget "n3": it is alive; stop it first`},
		{"stopped", n3, errors.New("the node does not run"), 503, "unavailable", `cannot forget "n3": the node does not run`},
	} {
		var asked []string
		set := limiter.VoterSet{ClusterID: "b1", Version: 5, Members: []string{"n1", "n2"}}
		h := clustered(t, limiter.Overview{State: limiter.State{Set: set}}, func(_ context.Context, name string) error {
			asked = append(asked, name)
			return c.err
		})
		r := httptest.NewRequest(http.MethodPost, "/admin/v1alpha1/members/forget", strings.NewReader(c.body))
		r.RemoteAddr, r.Host = "127.0.0.1:5000", "127.0.0.1:7461"
		if c.want != limiter.ErrNotOperator.Message {
			r = r.WithContext(access.AsOperator(r.Context()))
		}
		w := serve(h, r)
		got := strings.TrimSpace(w.Body.String())
		if c.status != 200 {
			m := decoded(t, w)
			got, _ = m["detail"].(string)
			if code, _ := m["code"].(string); code != c.code || w.Header().Get("Content-Type") != httpanswer.TypeProblem {
				t.Errorf("%s: %s %s", c.name, w.Header().Get("Content-Type"), w.Body)
			}
		}
		if w.Code != c.status || got != c.want {
			t.Errorf("%s: %d %s\nwant %d %s", c.name, w.Code, got, c.status, c.want)
		}
		if reached := c.status == 200 || c.err != nil; reached != (len(asked) == 1) {
			t.Errorf("%s: asked to forget %q", c.name, asked)
		}
	}
}
