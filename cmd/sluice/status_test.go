package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// sick answers Status and Top.
type sick struct {
	adminv1alpha1.UnimplementedAdminServiceServer
	status *adminv1alpha1.StatusResponse
	top    *adminv1alpha1.TopResponse
}

func (s *sick) Status(context.Context, *adminv1alpha1.StatusRequest) (*adminv1alpha1.StatusResponse, error) {
	return s.status, nil
}

func (s *sick) Top(context.Context, *adminv1alpha1.TopRequest) (*adminv1alpha1.TopResponse, error) {
	if s.top == nil {
		return nil, status.Error(codes.FailedPrecondition, "counts no top keys")
	}
	return s.top, nil
}

func TestStatusCommand(t *testing.T) {
	s := &sick{status: &adminv1alpha1.StatusResponse{
		Members: &adminv1alpha1.MembersResponse{
			Self: "n1", VoterSet: &adminv1alpha1.VoterSet{ClusterId: "18e9-f5", Version: 4, Members: []string{"n1", "n2", "n3"}},
			Health: &adminv1alpha1.Health{Status: "degraded", Summary: "Degraded: n3, a voter, has been silent for 12s", Causes: []*adminv1alpha1.HealthCause{
				{Severity: "warning", Text: "n3, a voter, has been silent for 12s", Doc: "https://example.com/docs/operate/troubleshooting.md#sluicemembermissing"},
				{Severity: "notice", Text: "n2: no --callers: every client that reaches the ports of 0.0.0.0 may check and reset any key", Doc: "https://example.com/docs/operate/security.md#callers"},
			}},
			Members: []*adminv1alpha1.Member{
				{Name: "n1", State: "serving", Voter: true, Alive: true, Owned: 511, ClockAheadNs: new(int64(0)), Version: "v1", GrpcAddress: "10.0.0.1:7460"},
				{Name: "n2", State: "serving", Voter: true, Alive: true, Owned: 510, ClockAheadNs: new(int64(12e6)), Version: "v1"},
				{Name: "n3", State: "missing", Voter: true, SilentNs: new(int64(12e9))},
			},
		},
		Nodes: []*adminv1alpha1.NodeReport{
			{Name: "n1", MayDecide: true, Rules: "0123456789", PartitionCounts: &adminv1alpha1.PartitionCounts{Unprotected: 3}, Files: []*adminv1alpha1.FollowedFile{
				{Label: "peer", Expires: time.Now().Add(1000 * time.Hour).Unix(), Left: 0.5}, {Label: "api", Expires: time.Now().Add(72*time.Hour - time.Minute).Unix(), Left: 0.1},
			}},
			{Name: "n2", Rules: "0123456789", RulesError: "line 3", Insecure: []string{"no --callers"}},
		},
		Missing: []string{"n3"},
	}}
	addr := serveGRPC(t, func(server *grpc.Server) { adminv1alpha1.RegisterAdminServiceServer(server, s) })
	want := `Degraded: n3, a voter, has been silent for 12s
  see docs/operate/troubleshooting.md#sluicemembermissing
  NOTICE    n2: no --callers: every client that reaches the ports of 0.0.0.0
            may check and reset any key; see docs/operate/security.md#callers

NODE  STATE       QUORUM  OWNED  UNPROTECTED  RULES           CLOCK    CERTIFICATE
n1 *  serving     yes     511    3            01234567        +0.000s  api 3d
n2    serving     no      510    0            01234567 (old)  +0.012s  -
n3    silent 12s  -       0      -            -               -        -
voter set: n1, n2, n3 (version 4 of 18e9-f5; a majority is 2)

most denied keys: not counted or not shown (--top-keys)
`
	if code, out, errs := cli("status", "--addr", addr); code != exitNoVerdict || out != want {
		t.Errorf("exit code %d, %s%s\nwant %s", code, out, errs, want)
	}
	if code, _, errs := cli("top", "--addr", addr, "--once"); code != exitDenied || !strings.Contains(errs, "counts no top keys") {
		t.Errorf("top: exit code %d, %s", code, errs)
	}
	s.top = &adminv1alpha1.TopResponse{CoversNs: 60e9}
	if _, out, _ := cli("status", "--addr", addr, "-o", "wide"); !strings.Contains(out, "no key was denied in the last 1m0s") || !strings.Contains(out, "10.0.0.1:7460") {
		t.Errorf("%s", out)
	}
	s.top.Keys = []*adminv1alpha1.TopKey{{Domain: "auth", Rule: "login", PerSecond: 12, Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "a b"}}}}
	if _, out, _ := cli("status", "--addr", addr); !strings.HasSuffix(out, "DENIED/S  MOST DENIED KEY  RULE\n12.0      auth \"user=a b\"  login\n") {
		t.Errorf("%s", out)
	}
	_, out, _ := cli("status", "--addr", addr, "-o", "json")
	s.status.Nodes[0].RegionWeight = 2
	s.status.Nodes[0].Region, s.status.Nodes[1].Region = "eu", "eu"
	s.status.Nodes[0].DecidedBy, s.status.Nodes[0].Decides, s.status.Nodes[0].RoleProblem = "eu", []string{"us"}, "few are heard"
	s.status.Nodes[0].Regions = []*adminv1alpha1.RegionReport{
		{Name: "ap", State: "linked", Nodes: []string{"a1", "a2"}, RttNs: 150e6, DecidedBy: "ap", Weight: 1}, {Name: "us", State: "linked", Nodes: []string{"u2"}, RttNs: 61_234_567, DecidedBy: "eu", Weight: 10},
	}
	s.status.Nodes[1].Regions = []*adminv1alpha1.RegionReport{
		{Name: "ap", State: "linked", Nodes: []string{"a2", "a3"}, RttNs: 160e6}, {Name: "us", State: "unreached", InStateNs: 12e9, Reason: "10.0.0.1:7462: no hello within 500ms"}, {Name: "za", State: "unknown"},
	}
	if _, out, _ := cli("status", "--addr", addr); !strings.Contains(out, `a majority is 2)

REGION  STATE          WEIGHT  LINKED FROM  NODES REACHED  RTT     KEYS DECIDED BY  REASON
eu *    -              2       -            -              -       no region        n1: few are heard
ap      linked         1       2 of 2       a1 a2 a3       160ms   ap               -
us      unreached 12s  10      1 of 2       u2             61.2ms  eu               n2: 10.0.0.1:7462: no hello within 500ms
za      unknown        0       0 of 0       -              0s      -                -
`) {
		t.Errorf("%s", out)
	}
	if _, out, _ := cli("status", "--addr", addr, "-o", "json"); !strings.Contains(out, `"name":"us","nodes":["u2"]`) || !strings.Contains(out, `"rtt":0.061234567`) {
		t.Errorf("%s", out)
	}
	want = `{"health":{"status":"degraded","summary":"Degraded: n3, a voter, has been silent for 12s","causes":[
		{"severity":"warning","text":"n3, a voter, has been silent for 12s","doc":"https://example.com/docs/operate/troubleshooting.md#sluicemembermissing"},
		{"severity":"notice","text":"n2: no --callers: every client that reaches the ports of 0.0.0.0 may check and reset any key","doc":"https://example.com/docs/operate/security.md#callers"}]},
		"missing":["n3"],"top":[{"domain":"auth","descriptor":[{"key":"user","value":"a b"}],"rule":"login","per_second":12}],"nodes":[
		{"name":"n1","may_decide":true,"rules":"0123456789","partition_counts":{"unprotected":3},"files":[{"label":"peer","left":0.5},{"label":"api","left":0.1}]},
		{"name":"n2","rules":"0123456789","rules_error":"line 3","insecure":["no --callers"]}]}`
	got := decoded(t, out).(map[string]any)
	for _, f := range got["nodes"].([]any)[0].(map[string]any)["files"].([]any) {
		delete(f.(map[string]any), "expires") // a time of this run
	}
	if delete(got, "members"); !sameJSON(got, decoded(t, want)) { // TestPrintMembers has those
		t.Errorf("%s\nwant %s", out, want)
	}
	for health, want := range map[string]int{"healthy": 0, "stale_rules": exitNoVerdict, "no_quorum": exitDenied} {
		s.status.Members.Health = &adminv1alpha1.Health{Status: health, Summary: "X: y"}
		if code, _, errs := cli("status", "--addr", addr); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", health, code, want, errs)
		}
	}
	if code, _, _ := cli("status", "--addr", "127.0.0.1:1", "--timeout", "1s"); code != exitNoAnswer {
		t.Errorf("nobody there: exit code %d", code)
	}
}

// statusOfANode: a healthy node that runs without a protection says so. One whose rule files became invalid is not healthy, and says
// why, until they are valid again.
func statusOfANode(t *testing.T, n *running) {
	code, out, errs := cli("status", "--addr", n.grpc)
	if code != 0 || !strings.HasPrefix(out, "Healthy: 1 of 1 nodes serve") || !strings.Contains(out, "\n  NOTICE    n1: --admin-anywhere: the operators' token is sent to ") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	const sound = "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n"
	writeRule(t, n.rules, "domain: auth\nnonsense: 1\n")
	await(t, "stale", func() bool { code, out, _ = cli("status", "--addr", n.grpc); return code != 0 })
	if code != exitNoVerdict || !strings.HasPrefix(out, "Stale rules: n1 keeps its old rules: ") || !strings.Contains(out, "rules.yaml:2") ||
		!strings.Contains(out, "docs/operate/troubleshooting.md#sluicerulesstale") {
		t.Errorf("exit code %d, %s", code, out)
	}
	if _, out, _ := cli("members", "--addr", n.grpc); !strings.HasPrefix(out, "Stale rules: ") {
		t.Errorf("members: %s", out)
	}
	writeRule(t, n.rules, sound)
	await(t, "healthy again", func() bool { code, _, _ = cli("status", "--addr", n.grpc); return code == 0 })
}
