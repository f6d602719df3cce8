package gubernator

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/internal/httpbody"
	"google.golang.org/protobuf/encoding/protojson"
)

// handler returns d's paths.
func handler(d *API) http.Handler {
	mux := http.NewServeMux()
	d.Mount(mux)
	return mux
}

// call asks h and returns the answer's status and body, without white space.
func call(h http.Handler, method, path, body string) (*httptest.ResponseRecorder, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	var compact bytes.Buffer
	if json.Compact(&compact, w.Body.Bytes()) != nil {
		return w, w.Body.String()
	}
	return w, compact.String()
}

// TestHTTP: what a client of gubernator's HTTP port sends and gets, letter by letter.
func TestHTTP(t *testing.T) {
	d, n := openNode(t)
	n.Now.Store(apitest.Start)
	h := handler(d)
	for _, c := range []struct {
		name, body string
		code       int
		want       string
	}{
		{"names as in the .proto file", `{"requests":[{"name":"r","unique_key":"a","hits":"1","limit":"10","duration":"60000"}]}`, 200,
			`{"responses":[{"status":"UNDER_LIMIT","limit":"10","remaining":"9","reset_time":"1700006460000","error":"","metadata":{}}]}`},
		{"names in camel case, numbers as numbers", `{"requests":[{"name":"r","uniqueKey":"a","hits":10,"limit":10,"duration":60000}]}`, 200,
			`{"responses":[{"status":"OVER_LIMIT","limit":"10","remaining":"9","reset_time":"1700006460000","error":"","metadata":{}}]}`},
		{"enums by name and by number", `{"requests":[
			{"name":"r","unique_key":"b","hits":1,"limit":10,"duration":60000,"algorithm":"LEAKY_BUCKET","behavior":"GLOBAL"},
			{"name":"r","unique_key":"b","hits":1,"limit":10,"duration":60000,"algorithm":1,"behavior":3}]}`, 200,
			`{"responses":[{"status":"UNDER_LIMIT","limit":"10","remaining":"9","reset_time":"1700006406000","error":"","metadata":{}},` +
				`{"status":"UNDER_LIMIT","limit":"10","remaining":"8","reset_time":"1700006406000","error":"","metadata":{}}]}`},
		{"good and bad", `{"requests":[{"name":"r","hits":1},{"unique_key":"a","created_at":"5","metadata":{"a":"b"}},{"name":"r","unique_key":"c"}]}`, 200,
			`{"responses":[{"status":"UNDER_LIMIT","limit":"0","remaining":"0","reset_time":"0","error":"field 'unique_key' cannot be empty","metadata":{}},` +
				`{"status":"UNDER_LIMIT","limit":"0","remaining":"0","reset_time":"0","error":"field 'namespace' cannot be empty","metadata":{}},` +
				`{"status":"OVER_LIMIT","limit":"0","remaining":"0","reset_time":"1700006400001","error":"","metadata":{}}]}`},
		{"fields of later versions", `{"requests":[{"name":"r","unique_key":"a","limit":10,"duration":60000,"from":"the future"}]}`, 200,
			`{"responses":[{"status":"UNDER_LIMIT","limit":"10","remaining":"9","reset_time":"1700006460000","error":"","metadata":{}}]}`},
		{"nothing", ``, 200, `{"responses":[]}`},
		{"nobody", `{}`, 200, `{"responses":[]}`},
		{"too many", `{"requests":[` + strings.Repeat(`{},`, 1000) + `{}]}`, 400,
			`{"code":11,"message":"requests: there are 1001; want at most 1000, split the call","details":[]}`},
		{"too large", `{"requests":[],"x":"` + strings.Repeat("x", httpbody.Most) + `"}`, 413,
			`{"code":8,"message":"the body is larger than 4194304 bytes; split the call","details":[]}`},
		{"no JSON", `hits=1`, 400, `{"code":3,"message":"body: syntax error (line 1:1): invalid value hits","details":[]}`},
		{"cut off", `{"requests":[{"name":"r"`, 400, `{"code":3,"message":"body: unexpected EOF","details":[]}`},
		{"a wrong type", `{"requests":[{"name":"r","unique_key":"a","hits":true}]}`, 400,
			`{"code":3,"message":"body: (line 1:50): invalid value for int64 field hits: true","details":[]}`},
		{"a fraction", `{"requests":[{"name":"r","unique_key":"a","hits":1.5}]}`, 400,
			`{"code":3,"message":"body: (line 1:50): invalid value for int64 field hits: 1.5","details":[]}`},
		{"more than a number can be", `{"requests":[{"name":"r","unique_key":"a","hits":"9223372036854775808"}]}`, 400,
			`{"code":3,"message":"body: (line 1:50): invalid value for int64 field hits: \"9223372036854775808\"","details":[]}`},
		{"an unknown name of an enum", `{"requests":[{"name":"r","unique_key":"a","algorithm":"GCRA"}]}`, 400,
			`{"code":3,"message":"body: requests[0].algorithm: \"GCRA\" is unknown; want LEAKY_BUCKET, TOKEN_BUCKET","details":[]}`},
		{"an unknown name in the second request", `{"requests":[{"name":"r","unique_key":"a"},{"behavior":"1"}]}`, 400,
			`{"code":3,"message":"body: requests[1].behavior: \"1\" is unknown; want BATCHING, DRAIN_OVER_LIMIT, ` +
				`DURATION_IS_GREGORIAN, GLOBAL, MULTI_REGION, NO_BATCHING, RESET_REMAINING","details":[]}`},
		{"a list", `[]`, 400, `{"code":3,"message":"body: syntax error (line 1:1): unexpected token [","details":[]}`},
	} {
		asked := n.Asked.Load()
		w, got := call(h, http.MethodPost, "/v1/GetRateLimits", c.body)
		if w.Code != c.code || got != c.want {
			t.Errorf("%s: %d %s\nwant %d %s", c.name, w.Code, got, c.code, c.want)
		}
		if kind := w.Header().Get("Content-Type"); kind != "application/json" {
			t.Errorf("%s: Content-Type %q", c.name, kind)
		}
		if c.code != 200 && n.Asked.Load() != asked {
			t.Errorf("%s: something was asked of the node", c.name)
		}
	}
}

func TestHTTPMethods(t *testing.T) {
	d, n := openNode(t)
	h := handler(d)
	for _, c := range []struct{ method, path, allow string }{
		{"GET", "/v1/GetRateLimits", "POST"}, {"PUT", "/v1/GetRateLimits", "POST"},
		{"POST", "/v1/HealthCheck", "GET, HEAD"}, {"DELETE", "/v1/LiveCheck", "GET, HEAD"},
	} {
		w, got := call(h, c.method, c.path, "")
		if want := `{"code":12,"message":"want ` + c.allow + `","details":[]}`; w.Code != 405 || w.Header().Get("Allow") != c.allow || got != want {
			t.Errorf("%s %s: %d, Allow %q, %s", c.method, c.path, w.Code, w.Header().Get("Allow"), got)
		}
	}
	if n.Asked.Load() != 0 {
		t.Error("something was asked of the node")
	}
}

// TestHTTPProbes: a node that may not decide says so in its status, which is all that a load balancer reads.
func TestHTTPProbes(t *testing.T) {
	leaving, may := false, true
	n := apitest.NewNode(t)
	d := open(t, n, n, func(c *Config) {
		c.Leaving = func() bool { return leaving }
		l := &membersOnly{}
		l.members = c.Limiter.Members(t.Context())
		l.members.MayDecide = may
		c.Limiter = l
	})
	ask := func(want string, code int, path string) {
		t.Helper()
		if w, got := call(handler(d), http.MethodGet, path, ""); w.Code != code || got != want {
			t.Errorf("%s: %d %s\nwant %d %s", path, w.Code, got, code, want)
		}
	}
	const peers = `"peer_count":1,"advertise_address":"127.0.0.1:7460","local_peers":[{"grpc_address":"127.0.0.1:7460","data_center":""}],"region_peers":[]}`
	ask(`{"status":"healthy","message":"",`+peers, 200, "/v1/HealthCheck")
	ask(`{}`, 200, "/v1/LiveCheck")
	l := d.config.Limiter.(*membersOnly)
	l.members.MayDecide, l.members.Reason = false, "cut off"
	ask(`{"status":"unhealthy","message":"this node has no quorum: cut off",`+peers, 503, "/v1/HealthCheck")
	ask(`{}`, 200, "/v1/LiveCheck")
	leaving = true
	const gone = `{"code":14,"message":"this node is leaving; ask another","details":[]}`
	ask(gone, 503, "/v1/HealthCheck")
	ask(gone, 503, "/v1/LiveCheck")
	if w, got := call(handler(d), http.MethodPost, "/v1/GetRateLimits", `{}`); w.Code != 503 || got != gone {
		t.Errorf("GetRateLimits while leaving: %d %s", w.Code, got)
	}
}

// FuzzHTTP: whatever the body, the answer is JSON with one of the statuses that the API knows, and has an
// answer for each request.
func FuzzHTTP(f *testing.F) {
	for _, body := range []string{
		`{"requests":[{"name":"r","unique_key":"a","hits":"1","limit":"10","duration":"60000"}]}`,
		`{"requests":[{"name":"r","uniqueKey":"a","hits":-9223372036854775808,"limit":1,"behavior":44,"algorithm":1,"burst":-1}]}`,
		`{"requests":[{"name":"r","unique_key":"a","hits":3,"limit":2,"duration":5,"behavior":"DURATION_IS_GREGORIAN"},{}]}`,
		`{"requests":null}`, `[`, `{"requests":[null]}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d, _ := openNode(t)
		w, _ := call(handler(d), http.MethodPost, "/v1/GetRateLimits", string(body))
		if !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%d %q", w.Code, w.Body)
		}
		if w.Code != http.StatusOK {
			if w.Code != http.StatusBadRequest {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			return
		}
		var req gubernatorv1.GetRateLimitsReq
		var res gubernatorv1.GetRateLimitsResp
		if err := decode(body, &req); err != nil && len(body) > 0 {
			t.Fatalf("answered, and cannot be read: %v", err)
		}
		if err := protojson.Unmarshal(w.Body.Bytes(), &res); err != nil {
			t.Fatal(err)
		}
		if len(res.GetResponses()) != len(req.GetRequests()) {
			t.Fatalf("%d answers to %d requests", len(res.GetResponses()), len(req.GetRequests()))
		}
		for i, r := range res.GetResponses() {
			q := req.GetRequests()[i]
			if r.GetError() != "" {
				continue
			}
			most := max(0, q.GetLimit())
			if q.GetAlgorithm() == gubernatorv1.Algorithm_LEAKY_BUCKET && q.GetBurst() > 0 {
				most = q.GetBurst()
			}
			if r.GetRemaining() < 0 || r.GetRemaining() > most || r.GetResetTime() < 0 || r.GetLimit() != q.GetLimit() {
				t.Fatalf("%v answered %v", q, r)
			}
		}
	})
}
