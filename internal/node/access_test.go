package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/envoy"
)

const (
	passed          = "passed"
	unauthenticated = "unauthenticated"
	forbidden       = "forbidden"
)

// outsider asks a node by all of its APIs, with the credentials that it is told to show.
type outsider struct {
	t    *testing.T
	node *running
	conn *grpc.ClientConn
	// reservation is one that is known and cannot be spent.
	reservation string
}

func newOutsider(t *testing.T, n *running) *outsider {
	conn, err := grpc.NewClient(n.listen.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &outsider{t: t, node: n, conn: conn}
}

// with returns the context of a call that shows these values of Authorization.
func (s *outsider) with(authorization []string) context.Context {
	ctx := s.t.Context()
	for _, v := range authorization {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
	}
	return ctx
}

// byCode is the outcome of a gRPC call.
func (s *outsider) byCode(err error) string {
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.FailedPrecondition: // what comes behind the API
		return passed
	case codes.Unauthenticated:
		return unauthenticated
	case codes.PermissionDenied:
		return forbidden
	}
	return err.Error()
}

// http calls a path, and returns the outcome and the body. header has the credentials' name.
func (s *outsider) http(header, method, path, body string, credentials []string) (string, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.node.listen.http.Addr().String()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header[header] = credentials
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	challenge := resp.Header.Get("WWW-Authenticate")
	want := ""
	outcome := fmt.Sprintf("%d %s", resp.StatusCode, text)
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNotFound, http.StatusConflict:
		outcome = passed
	case http.StatusUnauthorized:
		outcome, want = unauthenticated, `Bearer realm="sluice"`
		if header == access.TokenHeader {
			want = `Sluice-Token realm="sluice"`
		}
	case http.StatusForbidden:
		outcome = forbidden
	}
	if challenge != want {
		s.t.Errorf("%s %s: %d with WWW-Authenticate %q, want %q", method, path, resp.StatusCode, challenge, want)
	}
	if resp.Header.Get("RateLimit") != "" && outcome != passed {
		s.t.Errorf("%s %s: a rejection looks like a limit: %v", method, path, resp.Header)
	}
	return outcome, string(text)
}

// attempt is one thing to do in the domain a, and the verb that it takes; "" is any.
type attempt struct {
	name, verb string
	do         func(s *outsider, authorization []string) string
}

func checksOf(domain string, verb sluicev1.Verb) []*sluicev1.Check {
	return []*sluicev1.Check{{Domain: domain, Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "u"}}, Verb: verb}}
}

func gubernatorOf(name string, hits int64, behavior gubernatorv1.Behavior) *gubernatorv1.RateLimitReq {
	return &gubernatorv1.RateLimitReq{Name: name, UniqueKey: "u", Hits: hits, Limit: 100, Duration: 3_600_000, Behavior: behavior}
}

func reserve(c sluicev1.RateLimitServiceClient, ctx context.Context, _ string) error {
	units := int64(1)
	_, err := c.Reserve(ctx, &sluicev1.ReserveRequest{Checks: checksOf("a", 0), Units: &units})
	return err
}

// settled returns a reservation that was settled.
func (s *outsider) settled(authorization string) string {
	s.t.Helper()
	c, units := sluicev1.NewRateLimitServiceClient(s.conn), int64(1)
	res, err := c.Reserve(s.with([]string{authorization}), &sluicev1.ReserveRequest{Checks: checksOf("a", 0), Units: &units})
	if err == nil {
		_, err = c.Settle(s.with([]string{authorization}), &sluicev1.SettleRequest{Reservation: res.GetReservation()})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return res.GetReservation()
}

// attempts are all that the APIs let anybody do.
func attempts() (list []attempt) {
	add := func(name, verb string, do func(s *outsider, authorization []string) string) {
		list = append(list, attempt{name, verb, do})
	}
	for name, ask := range map[string]func(s *outsider) *sluicev1.LeaseRequest{
		"asked for":  func(*outsider) *sluicev1.LeaseRequest { return &sluicev1.LeaseRequest{Units: 1, TtlNs: 1e7} },
		"given back": func(s *outsider) *sluicev1.LeaseRequest { return &sluicev1.LeaseRequest{Ended: s.reservation} },
	} {
		add("gRPC Check, a lease "+name, "check", func(s *outsider, a []string) string {
			_, err := sluicev1.NewRateLimitServiceClient(s.conn).Check(s.with(a), &sluicev1.CheckRequest{Checks: checksOf("a", 0), Lease: ask(s)})
			return s.byCode(err)
		})
	}
	for number, verb := range []string{"check", "read", "charge", "refund"} {
		wire := sluicev1.Verb(number)
		add("gRPC Check", verb, func(s *outsider, a []string) string {
			_, err := sluicev1.NewRateLimitServiceClient(s.conn).Check(s.with(a), &sluicev1.CheckRequest{Checks: checksOf("a", wire)})
			return s.byCode(err)
		})
		add("gRPC CheckStream", verb, func(s *outsider, a []string) string {
			ctx, cancel := context.WithCancel(s.with(a))
			defer cancel()
			stream, err := sluicev1.NewRateLimitServiceClient(s.conn).CheckStream(ctx)
			if err == nil {
				_ = stream.Send(&sluicev1.CheckRequest{Checks: checksOf("a", wire)}) // Recv says why it failed
				var res *sluicev1.CheckResponse
				if res, err = stream.Recv(); err == nil && res.GetDecisions()[0].GetError() != nil {
					return strings.ToLower(strings.TrimPrefix(res.GetDecisions()[0].GetError().GetCode().String(), "ERROR_CODE_"))
				}
			}
			return s.byCode(err)
		})
		add("HTTP check", verb, func(s *outsider, a []string) string {
			outcome, _ := s.http("Authorization", "POST", "/v1/"+verb, `{"domain":"a","descriptor":[{"key":"user","value":"u"}]}`, a)
			return outcome
		})
		add("HTTP checks", verb, func(s *outsider, a []string) string {
			outcome, _ := s.http("Authorization", "POST", "/v1/check", `{"checks":[{"domain":"a","descriptor":[{"key":"user","value":"u"}],"verb":"`+verb+`"}]}`, a)
			return outcome
		})
	}
	for hits, verb := range map[int64]string{1: "check", 0: "read", -1: "refund"} {
		add("Envoy", verb, func(s *outsider, a []string) string {
			d := &commonv3.RateLimitDescriptor{
				Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "u"}},
				HitsAddend: wrapperspb.UInt64(uint64(max(hits, -hits))), IsNegativeHits: hits < 0,
			}
			_, err := ratelimitv3.NewRateLimitServiceClient(s.conn).ShouldRateLimit(s.with(a),
				&ratelimitv3.RateLimitRequest{Domain: "a", Descriptors: []*commonv3.RateLimitDescriptor{d}})
			return s.byCode(err)
		})
	}
	for method, verb := range map[string]string{
		envoy.CheckRateLimitMethod: "read", envoy.ReportMethod: "charge", envoy.ReserveMethod: "check", envoy.CommitMethod: "charge",
	} {
		add("Kuadrant "+method, verb, func(s *outsider, a []string) string {
			d := &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "u"}}}
			// The fields of a ReserveRequest have the same numbers, and those of a CommitRequest but the last ones.
			req := &ratelimitv3.RateLimitRequest{Domain: "a", Descriptors: []*commonv3.RateLimitDescriptor{d}, HitsAddend: 1}
			return s.byCode(s.conn.Invoke(s.with(a), method, req, new(emptypb.Empty)))
		})
	}
	for _, g := range []struct {
		verb     string
		hits     int64
		behavior gubernatorv1.Behavior
	}{{"check", 1, 0}, {"read", 0, 0}, {"refund", -1, 0}, {"reset", 0, gubernatorv1.Behavior_RESET_REMAINING}} {
		add("gubernator gRPC", g.verb, func(s *outsider, a []string) string {
			_, err := gubernatorv1.NewV1Client(s.conn).GetRateLimits(s.with(a),
				&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{gubernatorOf("a", g.hits, g.behavior)}})
			return s.byCode(err)
		})
		add("gubernator HTTP", g.verb, func(s *outsider, a []string) string {
			outcome, _ := s.http("Authorization", "POST", "/v1/GetRateLimits",
				fmt.Sprintf(`{"requests":[{"name":"a","uniqueKey":"u","hits":%d,"limit":100,"duration":3600000,"behavior":%d}]}`, g.hits, g.behavior), a)
			return outcome
		})
	}
	for _, path := range []string{"/v1/authorize/a", "/v1/authorize/a/some/path"} {
		add("forward auth "+path, "check", func(s *outsider, a []string) string {
			own := slices.Clone(a)
			for i := range own { // the proxy's token stands alone
				own[i] = strings.TrimPrefix(own[i], "Bearer ")
			}
			outcome, _ := s.http(access.TokenHeader, "GET", path, "", own)
			return outcome
		})
	}
	add("HTTP reset", "reset", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "POST", "/v1/reset", `{"domain":"a","descriptor":[{"key":"user","value":"u"}]}`, a)
		return outcome
	})
	add("gRPC Top of a domain", "read", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).Top(s.with(a), &adminv1alpha1.TopRequest{Domain: "a"})
		return s.byCode(err)
	})
	add("HTTP top of a domain", "read", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "GET", "/admin/v1alpha1/top?domain=a", "", a)
		return outcome
	})
	add("gRPC Top of all", "read of all", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).Top(s.with(a), &adminv1alpha1.TopRequest{})
		return s.byCode(err)
	})
	add("HTTP top of all", "read of all", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "GET", "/admin/v1alpha1/top", "", a)
		return outcome
	})
	add("gRPC Inspect", "read", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).Inspect(s.with(a), &adminv1alpha1.InspectRequest{Domain: "a", Descriptor_: checksOf("a", 0)[0].Descriptor_})
		return s.byCode(err)
	})
	add("HTTP inspect", "read", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "POST", "/console/api/inspect", `{"domain":"a","descriptor":[{"key":"user","value":"u"}]}`, a)
		return outcome
	})
	add("HTTP rules", "read of all", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "GET", "/console/api/rules", "", a)
		return outcome
	})
	add("HTTP inspect and reset", "reset", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "POST", "/console/api/inspect/reset", `{"domain":"a","descriptor":[{"key":"user","value":"u"}]}`, a)
		return outcome
	})
	about := func(name, verb, body string, do func(c sluicev1.RateLimitServiceClient, ctx context.Context, id string) error) {
		add("gRPC "+name, verb, func(s *outsider, a []string) string {
			return s.byCode(do(sluicev1.NewRateLimitServiceClient(s.conn), s.with(a), s.reservation))
		})
		add("HTTP "+name, verb, func(s *outsider, a []string) string {
			outcome, _ := s.http("Authorization", "POST", "/v1/"+strings.ToLower(name), strings.ReplaceAll(body, "ID", s.reservation), a)
			return outcome
		})
	}
	about("Reserve", "check", `{"checks":[{"domain":"a","descriptor":[{"key":"user","value":"u"}]}],"units":1}`, reserve)
	about("Spend", "check", `{"reservation":"ID","units":1}`, func(c sluicev1.RateLimitServiceClient, ctx context.Context, id string) error {
		_, err := c.Spend(ctx, &sluicev1.SpendRequest{Reservation: id, Units: 1})
		return err
	})
	about("Extend", "check", `{"reservation":"ID","more":1}`, func(c sluicev1.RateLimitServiceClient, ctx context.Context, id string) error {
		_, err := c.Extend(ctx, &sluicev1.ExtendRequest{Reservation: id, More: 1})
		return err
	})
	about("Settle", "check", `{"reservation":"ID","actual":1}`, func(c sluicev1.RateLimitServiceClient, ctx context.Context, id string) error {
		_, err := c.Settle(ctx, &sluicev1.SettleRequest{Reservation: id, Actual: 1})
		return err
	})
	about("Held", "read", `{"domain":"a","descriptor":[{"key":"user","value":"u"}]}`, func(c sluicev1.RateLimitServiceClient, ctx context.Context, _ string) error {
		_, err := c.Held(ctx, &sluicev1.HeldRequest{Domain: "a", Descriptor_: checksOf("a", 0)[0].Descriptor_})
		return err
	})
	add("gRPC Session", "check", func(s *outsider, a []string) string {
		ctx, cancel := context.WithCancel(s.with(a))
		defer cancel()
		stream, err := sluicev1.NewRateLimitServiceClient(s.conn).Session(ctx)
		if err == nil {
			_ = stream.Send(&sluicev1.SessionRequest{Acquire: []*sluicev1.SlotRequest{{Number: 1, Check: checksOf("a", 0)[0]}}}) // Recv says why it failed
			var res *sluicev1.SessionResponse
			if res, err = stream.Recv(); err == nil {
				if e := res.GetSlots()[0].GetError(); e != nil && e.GetCode() != sluicev1.ErrorCode_ERROR_CODE_INVALID {
					return strings.ToLower(strings.TrimPrefix(e.GetCode().String(), "ERROR_CODE_"))
				}
			}
		}
		return s.byCode(err)
	})
	add("gRPC ReportLoad", "charge", func(s *outsider, a []string) string {
		_, err := sluicev1.NewRateLimitServiceClient(s.conn).ReportLoad(s.with(a), &sluicev1.ReportLoadRequest{Domain: "a", Pool: "spare"})
		return s.byCode(err)
	})
	add("HTTP load", "charge", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "PUT", "/v1/pools/a/spare/load", `{"load":0}`, a)
		return outcome
	})
	add("gRPC Nodes", "", func(s *outsider, a []string) string {
		_, err := sluicev1.NewRateLimitServiceClient(s.conn).Nodes(s.with(a), &sluicev1.NodesRequest{})
		return s.byCode(err)
	})
	add("gRPC Members", "", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).Members(s.with(a), &adminv1alpha1.MembersRequest{})
		return s.byCode(err)
	})
	add("HTTP nodes", "", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "GET", "/v1/nodes", "", a)
		return outcome
	})
	add("HTTP members", "", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "GET", "/admin/v1alpha1/members", "", a)
		return outcome
	})
	add("gRPC ForgetMember", "admin", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).ForgetMember(s.with(a), &adminv1alpha1.ForgetMemberRequest{Name: "nobody"})
		return s.byCode(err)
	})
	add("gRPC Bootstrap", "admin", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).Bootstrap(s.with(a), &adminv1alpha1.BootstrapRequest{})
		return s.byCode(err)
	})
	add("gRPC AcceptLoss", "admin", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).AcceptLoss(s.with(a), &adminv1alpha1.AcceptLossRequest{})
		return s.byCode(err)
	})
	add("gRPC PromoteRegion", "admin", func(s *outsider, a []string) string {
		_, err := adminv1alpha1.NewAdminServiceClient(s.conn).PromoteRegion(s.with(a), &adminv1alpha1.PromoteRegionRequest{Region: "eu", Home: "eu"})
		return s.byCode(err)
	})
	add("HTTP forget", "admin", func(s *outsider, a []string) string {
		outcome, _ := s.http("Authorization", "POST", "/admin/v1alpha1/members/forget", `{"name":"nobody"}`, a)
		return outcome
	})
	return list
}

// startGuarded starts a node with the domains a and b, and callers of one verb each in a, one of all verbs in b, and one
// who may read everything. It returns the node and the tokens.
func startGuarded(t *testing.T) (*running, map[string]string) {
	s := testConfig(t)
	var rules strings.Builder
	for _, d := range []string{"a", "b"} {
		rules.Reset()
		fmt.Fprintf(&rules, "domain: %s\nauthorize: {descriptors: [[{key: user, value: u}]]}\n", d)
		rules.WriteString("pools: {spare: {limit: {count: 1, period: 1h}, load: {shrink_to: 50%}}}\n")
		rules.WriteString("descriptors: [{key: user, rate_limit: {count: 100, period: 1h}, elastic: {pool: spare}}]\n")
		if err := os.WriteFile(filepath.Join(s.Rules, d+".yaml"), []byte(rules.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tokens := make(map[string]string)
	var file strings.Builder
	file.WriteString("callers:\n")
	caller := func(name, domains, verbs string) {
		token, digest := testToken(t, byte(len(tokens)))
		tokens[name] = token
		fmt.Fprintf(&file, "  - {name: %s, tokens: [%s], grants: [{domains: %s, verbs: [%s]}]}\n", name, digest, domains, verbs)
	}
	for _, verb := range []string{"check", "read", "charge", "refund", "reset"} {
		caller(verb, "[a, gubernator/a]", verb)
	}
	caller("admin", `["*"]`, "admin")
	caller("read-of-all", `["*"]`, "read")
	caller("b", "[b, gubernator/b]", "check, read, charge, refund, reset")
	tokens["unknown"], _ = testToken(t, 0xff)
	s.Callers = writeFile(t, file.String())
	return startNode(t, s), tokens
}

// TestEveryAPIAsks tries everything by every API with every token and without: nothing gets through that is not
// granted, and what was rejected has changed nothing.
func TestEveryAPIAsks(t *testing.T) {
	t.Parallel()
	n, tokens := startGuarded(t)
	s := newOutsider(t, n)
	s.reservation = s.settled("Bearer " + tokens["check"])
	left := func() (out []int64) {
		res, err := sluicev1.NewRateLimitServiceClient(s.conn).Check(s.with([]string{"Bearer " + tokens["read-of-all"]}),
			&sluicev1.CheckRequest{Checks: checksOf("a", sluicev1.Verb_VERB_READ)})
		if err != nil {
			t.Fatal(err)
		}
		g, err := gubernatorv1.NewV1Client(s.conn).GetRateLimits(s.with([]string{"Bearer " + tokens["read-of-all"]}),
			&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{gubernatorOf("a", 0, 0)}})
		if err != nil {
			t.Fatal(err)
		}
		return []int64{res.GetDecisions()[0].GetRemaining(), g.GetResponses()[0].GetRemaining()}
	}
	// Something is spent, so that a refund and a reset would show.
	for _, charge := range attempts() {
		if charge.verb == "charge" || charge.verb == "check" {
			if got := charge.do(s, []string{"Bearer " + tokens[charge.verb]}); got != passed {
				t.Fatalf("%s: %s", charge.name, got)
			}
		}
	}
	before := left()
	for _, a := range attempts() {
		for name, shown := range map[string][]string{
			"nothing": nil, "an unknown token": {"Bearer " + tokens["unknown"]}, "no token": {"Bearer x"},
			"the token of another scheme": {"Basic " + tokens["check"]}, "two": {"Bearer " + tokens["check"], "Bearer " + tokens["read"]},
		} {
			if got := a.do(s, shown); got != unauthenticated {
				t.Errorf("%s (%s) with %s: %s", a.name, a.verb, name, got)
			}
		}
		for who, token := range tokens {
			want := forbidden
			switch {
			case who == "unknown":
				continue
			case a.verb == "" || a.verb == "read of all" && who == "read-of-all" || a.verb == "read" && who == "read-of-all":
				want = passed
			case who == a.verb:
				continue // below
			}
			if got := a.do(s, []string{"Bearer " + token}); got != want {
				t.Errorf("%s (%s) with the token of %s: %s, want %s", a.name, a.verb, who, got, want)
			}
		}
	}
	if after := left(); !slices.Equal(before, after) {
		t.Errorf("%v were left before all that was rejected, and %v after it", before, after)
	}
	for _, a := range attempts() {
		if token := tokens[a.verb]; token != "" {
			if got := a.do(s, []string{"Bearer " + token}); got != passed {
				t.Errorf("%s (%s) with a token for it: %s", a.name, a.verb, got)
			}
		}
	}
	// A method that is new has to be tried too.
	for _, m := range n.grpcServer.GetServiceInfo()[sluicev1.RateLimitService_ServiceDesc.ServiceName].Methods {
		if !slices.ContainsFunc(attempts(), func(a attempt) bool { return strings.HasPrefix(a.name, "gRPC "+m.Name) }) {
			t.Errorf("nobody tries gRPC %s", m.Name)
		}
	}
	// A proxy is not let in by what its client shows to others, and says of itself that it was rejected.
	if got, _ := s.http(access.TokenHeader, "GET", "/v1/authorize/b", "", nil); got != unauthenticated {
		t.Error(got)
	}
	r, err := http.NewRequest("GET", "http://"+n.listen.http.Addr().String()+"/v1/authorize/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+tokens["check"])
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 401 || res.Header.Get("Sluice-Rejection") != "unauthenticated" {
		t.Errorf("forward auth with a client's token: %d %v", res.StatusCode, res.Header)
	}
	// Probes and metrics are for everybody, and the counts are there.
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/HealthCheck", "/v1/LiveCheck"} {
		if code, body := n.get(t, path); code != 200 || strings.Contains(body, "grpc_address") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	_, metrics := n.get(t, "/metrics")
	for _, api := range []string{"grpc", "stream", "http", "envoy", "gubernator", "forward-auth"} {
		for _, reason := range []string{"no_credentials", "unknown_token", "malformed", "not_granted"} {
			if line := fmt.Sprintf("sluice_callers_rejected_total{api=%q,reason=%q} 0\n", api, reason); strings.Contains(metrics, line) {
				t.Errorf("not counted: %s", line)
			}
		}
	}
}

// TestMixedBatches: what may not be asked fails alone where the answers are apart, and is nobody's charge.
func TestMixedBatches(t *testing.T) {
	t.Parallel()
	n, tokens := startGuarded(t)
	s := newOutsider(t, n)
	client := sluicev1.NewRateLimitServiceClient(s.conn)
	shown := []string{"Bearer " + tokens["check"]}
	both := &sluicev1.CheckRequest{Checks: append(checksOf("a", 0), checksOf("b", 0)...)}
	res, err := client.Check(s.with(shown), both)
	if err != nil {
		t.Fatal(err)
	}
	if d := res.GetDecisions(); !d[0].GetAllowed() || d[1].GetAllowed() || d[1].GetError().GetCode() != sluicev1.ErrorCode_ERROR_CODE_FORBIDDEN {
		t.Errorf("gRPC: %v", d)
	}
	stream, err := client.CheckStream(s.with(shown))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(both); err != nil {
		t.Fatal(err)
	}
	if res, err = stream.Recv(); err != nil || !res.GetDecisions()[0].GetAllowed() || res.GetDecisions()[1].GetError().GetCode() != sluicev1.ErrorCode_ERROR_CODE_FORBIDDEN {
		t.Errorf("CheckStream: %v, %v", res, err)
	}
	both.AllOrNothing = true
	if res, err = client.Check(s.with(shown), both); err != nil || res.GetDecisions()[0].GetAllowed() {
		t.Errorf("gRPC, all or nothing: %v, %v", res, err)
	}
	const list = `{"checks":[{"domain":"a","descriptor":[{"key":"user","value":"u"}]},{"domain":"b","descriptor":[{"key":"user","value":"u"}]}]`
	_, body := s.http("Authorization", "POST", "/v1/check", list+"}", shown)
	var many struct {
		Decisions []struct {
			Allowed bool
			Error   struct{ Code string }
		}
	}
	if err := json.Unmarshal([]byte(body), &many); err != nil || !many.Decisions[0].Allowed || many.Decisions[1].Error.Code != forbidden {
		t.Errorf("HTTP: %s (%v)", body, err)
	}
	_, body = s.http("Authorization", "POST", "/v1/check", list+`,"all_or_nothing":true}`, shown)
	if err := json.Unmarshal([]byte(body), &many); err != nil || many.Decisions[0].Allowed || many.Decisions[1].Error.Code != forbidden {
		t.Errorf("HTTP, all or nothing: %s (%v)", body, err)
	}
	g, err := gubernatorv1.NewV1Client(s.conn).GetRateLimits(s.with(shown),
		&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{gubernatorOf("a", 1, 0), gubernatorOf("b", 1, 0), gubernatorOf("a", 1, gubernatorv1.Behavior_RESET_REMAINING)}})
	if err != nil {
		t.Fatal(err)
	}
	if r := g.GetResponses(); r[0].GetError() != "" || !strings.Contains(r[1].GetError(), "may not check") || !strings.Contains(r[2].GetError(), "may not reset") {
		t.Errorf("gubernator: %v", r)
	}
	both.AllOrNothing = false
	for _, c := range both.Checks {
		c.Verb = sluicev1.Verb_VERB_RESET
	}
	resets, err := client.Check(s.with([]string{"Bearer " + tokens["reset"]}), both)
	if err != nil {
		t.Fatal(err)
	}
	if d := resets.GetDecisions(); d[0].GetError() != nil || d[1].GetError().GetCode() != sluicev1.ErrorCode_ERROR_CODE_FORBIDDEN {
		t.Errorf("reset: %v", d)
	}
	// Envoy's request is one: a refund that is not granted fails the check beside it, before that is charged.
	entry := []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "envoy"}}
	_, err = ratelimitv3.NewRateLimitServiceClient(s.conn).ShouldRateLimit(s.with(shown), &ratelimitv3.RateLimitRequest{
		Domain: "a", Descriptors: []*commonv3.RateLimitDescriptor{{Entries: entry}, {Entries: entry, IsNegativeHits: true}},
	})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("Envoy: %v", err)
	}
	read := checksOf("a", sluicev1.Verb_VERB_READ)
	read[0].Descriptor_[0].Value = "envoy"
	res, err = client.Check(s.with([]string{"Bearer " + tokens["read"]}), &sluicev1.CheckRequest{Checks: read})
	if err != nil || res.GetDecisions()[0].GetRemaining() != 100 {
		t.Errorf("Envoy: after it %v, %v", res, err)
	}
}
