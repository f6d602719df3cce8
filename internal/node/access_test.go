package node

import (
	"context"
	"encoding/json"
	"fmt"
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
	return &outsider{t: t, node: n, conn: n.conn(t)}
}

func (s *outsider) api() sluicev1.RateLimitServiceClient {
	return sluicev1.NewRateLimitServiceClient(s.conn)
}

// with returns the context of a call that shows these values of Authorization.
func (s *outsider) with(authorization ...string) context.Context {
	ctx := s.t.Context()
	for _, v := range authorization {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
	}
	return ctx
}

// byCode is the outcome of a gRPC call.
func byCode(err error) string {
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

// byError is the outcome of an answer on a stream.
func byError(e *sluicev1.Error) string {
	if e == nil {
		return passed
	}
	return strings.ToLower(strings.TrimPrefix(e.GetCode().String(), "ERROR_CODE_"))
}

// http calls a path, and returns the outcome and the body. header has the credentials' name.
func (s *outsider) http(header, method, path, body string, credentials []string) (string, string) {
	s.t.Helper()
	var headers []string
	for _, c := range credentials {
		headers = append(headers, header, c)
	}
	resp, text := send(s.t, s.node.listen.http.Addr(), method, path, body, headers...)
	outcome, challenge := fmt.Sprintf("%d %s", resp.StatusCode, text), ""
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNotFound, http.StatusConflict:
		outcome = passed
	case http.StatusUnauthorized:
		outcome, challenge = unauthenticated, `Bearer realm="sluice"`
		if header == access.TokenHeader {
			challenge = `Sluice-Token realm="sluice"`
		}
	case http.StatusForbidden:
		outcome = forbidden
	}
	if got := resp.Header.Get("WWW-Authenticate"); got != challenge {
		s.t.Errorf("%s %s: %d with WWW-Authenticate %q, want %q", method, path, resp.StatusCode, got, challenge)
	}
	if resp.Header.Get("RateLimit") != "" && outcome != passed {
		s.t.Errorf("%s %s: a rejection looks like a limit: %v", method, path, resp.Header)
	}
	return outcome, text
}

// settled returns a reservation that was settled.
func (s *outsider) settled(authorization string) string {
	s.t.Helper()
	res, err := s.api().Reserve(s.with(authorization), reserveOne())
	if err == nil {
		_, err = s.api().Settle(s.with(authorization), &sluicev1.SettleRequest{Reservation: res.GetReservation()})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return res.GetReservation()
}

func reserveOne() *sluicev1.ReserveRequest {
	return &sluicev1.ReserveRequest{Checks: checksOf("a", "user", "u", 0).Checks, Units: new(int64(1))}
}

// attempt is one thing to do in the domain a, and the verb that it takes; "" is any.
type attempt struct {
	name, verb string
	do         func(s *outsider, authorization []string) string
}

const (
	userU  = `{"domain":"a","descriptor":[{"key":"user","value":"u"}]}`
	checkU = `{"domain":"a","descriptor":[{"key":"user","value":"u"}],"verb":"VERB"}`
)

// attempts are all that the APIs let anybody do.
func attempts() (list []attempt) {
	rpc := func(name, verb string, do func(ctx context.Context, s *outsider) error) {
		list = append(list, attempt{"gRPC " + name, verb, func(s *outsider, a []string) string { return byCode(do(s.with(a...), s)) }})
	}
	web := func(verb, method, path, body string) {
		list = append(list, attempt{"HTTP " + path, verb, func(s *outsider, a []string) string {
			outcome, _ := s.http("Authorization", method, path, strings.NewReplacer("ID", s.reservation, "VERB", verb).Replace(body), a)
			return outcome
		}})
	}
	stream := func(name, verb string, do func(ctx context.Context, s *outsider) string) {
		list = append(list, attempt{"gRPC " + name, verb, func(s *outsider, a []string) string {
			ctx, cancel := context.WithCancel(s.with(a...))
			defer cancel()
			return do(ctx, s)
		}})
	}
	for number, verb := range []string{"check", "read", "charge", "refund"} {
		checks := checksOf("a", "user", "u", sluicev1.Verb(number))
		rpc("Check", verb, func(ctx context.Context, s *outsider) error { _, err := s.api().Check(ctx, checks); return err })
		stream("CheckStream", verb, func(ctx context.Context, s *outsider) string {
			stream, err := s.api().CheckStream(ctx)
			if err != nil {
				return byCode(err)
			}
			_ = stream.Send(checks) // Recv says why it failed
			res, err := stream.Recv()
			if err != nil {
				return byCode(err)
			}
			return byError(res.GetDecisions()[0].GetError())
		})
		web(verb, "POST", "/v1/"+verb, userU)
		web(verb, "POST", "/v1/check", `{"checks":[`+checkU+`]}`)
	}
	rpc("Check, a lease asked for", "check", func(ctx context.Context, s *outsider) error {
		_, err := s.api().Check(ctx, &sluicev1.CheckRequest{Checks: reserveOne().Checks, Lease: &sluicev1.LeaseRequest{Units: 1, TtlNs: 1e7}})
		return err
	})
	rpc("Check, a lease given back", "check", func(ctx context.Context, s *outsider) error {
		_, err := s.api().Check(ctx, &sluicev1.CheckRequest{Checks: reserveOne().Checks, Lease: &sluicev1.LeaseRequest{Ended: s.reservation}})
		return err
	})
	envoyOf := func(hits int64) *ratelimitv3.RateLimitRequest {
		return &ratelimitv3.RateLimitRequest{Domain: "a", HitsAddend: 1, Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "u"}},
			HitsAddend: wrapperspb.UInt64(uint64(max(hits, -hits))), IsNegativeHits: hits < 0,
		}}}
	}
	for hits, verb := range map[int64]string{1: "check", 0: "read", -1: "refund"} {
		rpc("Envoy", verb, func(ctx context.Context, s *outsider) error {
			_, err := ratelimitv3.NewRateLimitServiceClient(s.conn).ShouldRateLimit(ctx, envoyOf(hits))
			return err
		})
	}
	for method, verb := range map[string]string{
		envoy.CheckRateLimitMethod: "read", envoy.ReportMethod: "charge", envoy.ReserveMethod: "check", envoy.CommitMethod: "charge",
	} {
		rpc("Kuadrant "+method, verb, func(ctx context.Context, s *outsider) error {
			// The fields of a ReserveRequest have the same numbers, and those of a CommitRequest but the last ones.
			return s.conn.Invoke(ctx, method, envoyOf(1), new(emptypb.Empty))
		})
	}
	for _, g := range []struct {
		verb     string
		hits     int64
		behavior gubernatorv1.Behavior
	}{{"check", 1, 0}, {"read", 0, 0}, {"refund", -1, 0}, {"reset", 0, gubernatorv1.Behavior_RESET_REMAINING}} {
		rpc("gubernator", g.verb, func(ctx context.Context, s *outsider) error {
			q := gubernatorOf("a", "u", g.hits, 100)
			q.Behavior = g.behavior
			_, err := gubernatorv1.NewV1Client(s.conn).GetRateLimits(ctx, &gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{q}})
			return err
		})
		web(g.verb, "POST", "/v1/GetRateLimits",
			fmt.Sprintf(`{"requests":[{"name":"a","uniqueKey":"u","hits":%d,"limit":100,"duration":3600000,"behavior":%d}]}`, g.hits, g.behavior))
	}
	for _, path := range []string{"/v1/authorize/a", "/v1/authorize/a/some/path"} {
		list = append(list, attempt{"forward auth " + path, "check", func(s *outsider, a []string) string {
			own := slices.Clone(a)
			for i := range own { // the proxy's token stands alone
				own[i] = strings.TrimPrefix(own[i], "Bearer ")
			}
			outcome, _ := s.http(access.TokenHeader, "GET", path, "", own)
			return outcome
		}})
	}
	web("reset", "POST", "/v1/reset", userU)
	web("read", "GET", "/admin/v1alpha1/top?domain=a", "")
	web("read of all", "GET", "/admin/v1alpha1/top", "")
	web("read", "POST", "/console/api/inspect", userU)
	web("read of all", "GET", "/console/api/rules", "")
	web("reset", "POST", "/console/api/inspect/reset", userU)
	web("check", "POST", "/v1/reserve", `{"checks":[`+userU+`],"units":1}`)
	web("check", "POST", "/v1/spend", `{"reservation":"ID","units":1}`)
	web("check", "POST", "/v1/extend", `{"reservation":"ID","more":1}`)
	web("check", "POST", "/v1/settle", `{"reservation":"ID","actual":1}`)
	web("read", "POST", "/v1/held", userU)
	web("charge", "PUT", "/v1/pools/a/spare/load", `{"load":0}`)
	web("", "GET", "/v1/nodes", "")
	web("", "GET", "/admin/v1alpha1/members", "")
	web("admin", "POST", "/admin/v1alpha1/members/forget", `{"name":"nobody"}`)
	rpc("Reserve", "check", func(ctx context.Context, s *outsider) error { _, err := s.api().Reserve(ctx, reserveOne()); return err })
	rpc("Spend", "check", func(ctx context.Context, s *outsider) error {
		_, err := s.api().Spend(ctx, &sluicev1.SpendRequest{Reservation: s.reservation, Units: 1})
		return err
	})
	rpc("Extend", "check", func(ctx context.Context, s *outsider) error {
		_, err := s.api().Extend(ctx, &sluicev1.ExtendRequest{Reservation: s.reservation, More: 1})
		return err
	})
	rpc("Settle", "check", func(ctx context.Context, s *outsider) error {
		_, err := s.api().Settle(ctx, &sluicev1.SettleRequest{Reservation: s.reservation, Actual: 1})
		return err
	})
	entries := []*sluicev1.Entry{{Key: "user", Value: "u"}}
	rpc("Held", "read", func(ctx context.Context, s *outsider) error {
		_, err := s.api().Held(ctx, &sluicev1.HeldRequest{Domain: "a", Descriptor_: entries})
		return err
	})
	stream("Session", "check", func(ctx context.Context, s *outsider) string {
		stream, err := s.api().Session(ctx)
		if err != nil {
			return byCode(err)
		}
		_ = stream.Send(&sluicev1.SessionRequest{Acquire: []*sluicev1.SlotRequest{{Number: 1, Check: reserveOne().Checks[0]}}}) // Recv says why it failed
		res, err := stream.Recv()
		if err != nil {
			return byCode(err)
		}
		if e := res.GetSlots()[0].GetError(); e.GetCode() != sluicev1.ErrorCode_ERROR_CODE_INVALID { // the rule has no slots
			return byError(e)
		}
		return passed
	})
	rpc("ReportLoad", "charge", func(ctx context.Context, s *outsider) error {
		_, err := s.api().ReportLoad(ctx, &sluicev1.ReportLoadRequest{Domain: "a", Pool: "spare"})
		return err
	})
	rpc("Nodes", "", func(ctx context.Context, s *outsider) error {
		_, err := s.api().Nodes(ctx, &sluicev1.NodesRequest{})
		return err
	})
	operators := func(name, verb string, do func(context.Context, adminv1alpha1.AdminServiceClient) error) {
		rpc(name, verb, func(ctx context.Context, s *outsider) error {
			return do(ctx, adminv1alpha1.NewAdminServiceClient(s.conn))
		})
	}
	operators("Top of a domain", "read", func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
		_, err := c.Top(ctx, &adminv1alpha1.TopRequest{Domain: "a"})
		return err
	})
	operators("Members", "", func(ctx context.Context, c adminv1alpha1.AdminServiceClient) error {
		_, err := c.Members(ctx, &adminv1alpha1.MembersRequest{})
		return err
	})
	for name, do := range operatorsCalls("a", entries) {
		verb := "admin"
		if v := map[string]string{"Top": "read of all", "Inspect": "read"}[name]; v != "" {
			verb = v
		}
		operators(name, verb, do)
	}
	return list
}

// startGuarded starts a node with the domains a and b, and callers of one verb each in a, one of all verbs in b, and one
// who may read everything. It returns the node and what each caller shows.
func startGuarded(t *testing.T) (*running, map[string]string) {
	s := testConfig(t)
	for _, d := range []string{"a", "b"} {
		text := "domain: " + d + "\nauthorize: {descriptors: [[{key: user, value: u}]]}\n" +
			"pools: {spare: {limit: {count: 1, period: 1h}, load: {shrink_to: 50%}}}\n" +
			"descriptors: [{key: user, rate_limit: {count: 100, period: 1h}, elastic: {pool: spare}}]\n"
		do(t, os.WriteFile(filepath.Join(s.Rules, d+".yaml"), []byte(text), 0o644))
	}
	bearers := make(map[string]string)
	file := "callers:\n"
	caller := func(name, domains, verbs string) {
		token, digest := testToken(t, byte(len(bearers)))
		bearers[name] = "Bearer " + token
		file += fmt.Sprintf("  - {name: %s, tokens: [%s], grants: [{domains: %s, verbs: [%s]}]}\n", name, digest, domains, verbs)
	}
	for _, verb := range []string{"check", "read", "charge", "refund", "reset"} {
		caller(verb, "[a, gubernator/a]", verb)
	}
	caller("admin", `["*"]`, "admin")
	caller("read-of-all", `["*"]`, "read")
	caller("b", "[b, gubernator/b]", "check, read, charge, refund, reset")
	s.Callers = writeFile(t, file)
	return startNode(t, s), bearers
}

// left is what remains of 100 for a user of a, and of gubernator's.
func (s *outsider) left(bearer, user string) [2]int64 {
	s.t.Helper()
	res, err := s.api().Check(s.with(bearer), checksOf("a", "user", user, sluicev1.Verb_VERB_READ))
	if err != nil {
		s.t.Fatal(err)
	}
	g, err := gubernatorv1.NewV1Client(s.conn).GetRateLimits(s.with(bearer),
		&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{gubernatorOf("a", user, 0, 100)}})
	if err != nil {
		s.t.Fatal(err)
	}
	return [2]int64{res.GetDecisions()[0].GetRemaining(), g.GetResponses()[0].GetRemaining()}
}

// TestEveryAPIAsks tries everything by every API with every token and without: nothing gets through that is not
// granted, and what was rejected has changed nothing.
func TestEveryAPIAsks(t *testing.T) {
	t.Parallel()
	n, bearers := startGuarded(t)
	s := newOutsider(t, n)
	s.reservation = s.settled(bearers["check"])
	// Something is spent, so that a refund and a reset would show.
	for _, a := range attempts() {
		if a.verb == "charge" || a.verb == "check" {
			if got := a.do(s, []string{bearers[a.verb]}); got != passed {
				t.Fatalf("%s: %s", a.name, got)
			}
		}
	}
	before := s.left(bearers["read-of-all"], "u")
	unknown, _ := testToken(t, 0xff)
	for _, a := range attempts() {
		for name, shown := range map[string][]string{
			"nothing": nil, "an unknown token": {"Bearer " + unknown}, "no token": {"Bearer x"},
			"the token of another scheme": {strings.Replace(bearers["check"], "Bearer", "Basic", 1)}, "two": {bearers["check"], bearers["read"]},
		} {
			if got := a.do(s, shown); got != unauthenticated {
				t.Errorf("%s (%s) with %s: %s", a.name, a.verb, name, got)
			}
		}
		for who, bearer := range bearers {
			want := forbidden
			if a.verb == "" || who == "read-of-all" && strings.HasPrefix(a.verb, "read") {
				want = passed
			} else if who == a.verb {
				continue // below
			}
			if got := a.do(s, []string{bearer}); got != want {
				t.Errorf("%s (%s) with the token of %s: %s, want %s", a.name, a.verb, who, got, want)
			}
		}
	}
	if after := s.left(bearers["read-of-all"], "u"); before != after {
		t.Errorf("%v were left before all that was rejected, and %v after it", before, after)
	}
	for _, a := range attempts() {
		if bearer := bearers[a.verb]; bearer != "" {
			if got := a.do(s, []string{bearer}); got != passed {
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
	resp, _ := send(t, n.listen.http.Addr(), "GET", "/v1/authorize/a", "", "Authorization", bearers["check"])
	if resp.StatusCode != 401 || resp.Header.Get("Sluice-Rejection") != "unauthenticated" {
		t.Errorf("forward auth with a client's token: %d %v", resp.StatusCode, resp.Header)
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
	n, bearers := startGuarded(t)
	s := newOutsider(t, n)
	both := func(verb sluicev1.Verb, all bool) *sluicev1.CheckRequest {
		return &sluicev1.CheckRequest{
			Checks: append(checksOf("a", "user", "u", verb).Checks, checksOf("b", "user", "u", verb).Checks...), AllOrNothing: all,
		}
	}
	// outcomes are those of an answer's decisions.
	outcomes := func(res *sluicev1.CheckResponse, err error) string {
		if err != nil {
			return err.Error()
		}
		var list []string
		for _, d := range res.GetDecisions() {
			list = append(list, fmt.Sprint(d.GetAllowed(), " ", byError(d.GetError())))
		}
		return strings.Join(list, ", ")
	}
	stream, err := s.api().CheckStream(s.with(bearers["check"]))
	if err == nil {
		err = stream.Send(both(sluicev1.Verb_VERB_CHECK, false))
	}
	do(t, err)
	byWeb := func(fields string) string {
		_, body := s.http("Authorization", "POST", "/v1/check", `{"checks":[`+userU+`,`+strings.Replace(userU, `"a"`, `"b"`, 1)+`]`+fields+`}`, []string{bearers["check"]})
		var many struct {
			Decisions []struct {
				Allowed bool
				Error   struct{ Code string }
			}
		}
		if err := json.Unmarshal([]byte(body), &many); err != nil {
			t.Fatal(body, err)
		}
		return fmt.Sprint(many.Decisions)
	}
	for _, c := range []struct{ name, got, want string }{
		{"gRPC", outcomes(s.api().Check(s.with(bearers["check"]), both(sluicev1.Verb_VERB_CHECK, false))), "true passed, false forbidden"},
		{"CheckStream", outcomes(stream.Recv()), "true passed, false forbidden"},
		{"gRPC, all or nothing", outcomes(s.api().Check(s.with(bearers["check"]), both(sluicev1.Verb_VERB_CHECK, true))), "false passed, false forbidden"},
		{"gRPC, resets", outcomes(s.api().Check(s.with(bearers["reset"]), both(sluicev1.Verb_VERB_RESET, false))), "true passed, false forbidden"},
		{"HTTP", byWeb(""), "[{true {}} {false {forbidden}}]"},
		{"HTTP, all or nothing", byWeb(`,"all_or_nothing":true`), "[{false {}} {false {forbidden}}]"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.name, c.got, c.want)
		}
	}
	reset := gubernatorOf("a", "u", 1, 100)
	reset.Behavior = gubernatorv1.Behavior_RESET_REMAINING
	g, err := gubernatorv1.NewV1Client(s.conn).GetRateLimits(s.with(bearers["check"]),
		&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{gubernatorOf("a", "u", 1, 100), gubernatorOf("b", "u", 1, 100), reset}})
	do(t, err)
	if r := g.GetResponses(); r[0].GetError() != "" || !strings.Contains(r[1].GetError(), "may not check") || !strings.Contains(r[2].GetError(), "may not reset") {
		t.Errorf("gubernator: %v", r)
	}
	// Envoy's request is one: a refund that is not granted fails the check beside it, before that is charged.
	entry := []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "envoy"}}
	_, err = ratelimitv3.NewRateLimitServiceClient(s.conn).ShouldRateLimit(s.with(bearers["check"]), &ratelimitv3.RateLimitRequest{
		Domain: "a", Descriptors: []*commonv3.RateLimitDescriptor{{Entries: entry}, {Entries: entry, IsNegativeHits: true}},
	})
	if left := s.left(bearers["read-of-all"], "envoy"); byCode(err) != forbidden || left[0] != 100 {
		t.Errorf("Envoy: %v, and then %v left", err, left)
	}
}
