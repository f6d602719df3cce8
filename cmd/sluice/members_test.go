package main

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
)

// threeMembers is what n1 says in a cluster of three of which n3 is gone.
func threeMembers() *adminv1alpha1.MembersResponse {
	return &adminv1alpha1.MembersResponse{
		Self: "n1", Ring: "dacccd824680c3d6", Partitions: 1021, MayDecide: true,
		VoterSet:        &adminv1alpha1.VoterSet{ClusterId: "18e9-f5", Version: 4, Members: []string{"n1", "n2", "n3"}},
		PartitionCounts: &adminv1alpha1.PartitionCounts{Owned: 500, Unprotected: 1, BelowReplicas: 6, HandingOver: 2, Replicas: 3, TakingOver: 4, Divergent: 5},
		Members: []*adminv1alpha1.Member{
			{
				Name: "n1", Boot: "18e9-f5", State: "serving", GrpcAddress: "10.0.0.1:7460", HttpAddress: "10.0.0.1:7461", PeerAddress: "10.0.0.1:7462",
				GossipAddress: "10.0.0.1:7463", Version: "v1", Partitions: 511, Voter: true, Alive: true, SilentNs: proto.Int64(0), Owned: 500,
			},
			{
				Name: "n2", Boot: "18ea-a7", State: "serving", GrpcAddress: "10.0.0.2:7460", HttpAddress: "10.0.0.2:7461", PeerAddress: "10.0.0.2:7462",
				GossipAddress: "10.0.0.2:7463", Version: "v1", Partitions: 510, Voter: true, SilentNs: proto.Int64(83_040_000_000), Owned: 21,
			},
			{Name: "n3", State: "missing", Voter: true},
			{Name: "n4", Boot: "18eb-00", State: "joining", Alive: true, SilentNs: proto.Int64(1_500_000)},
		},
	}
}

// nothing is what n1 says of itself that knows nothing.
const nothing = `0 partitions, ring -, as seen by n1 (*)
voter set: unknown
n1 may not decide
n1 owns 0 partitions, 0 of them without a complete replica elsewhere, 0 below their number of replicas; handing over 0, taking over 0, replicas 0, divergent states 0
`

func TestPrintMembers(t *testing.T) {
	whole := threeMembers()
	lost := &adminv1alpha1.MembersResponse{
		Self: "n1", Ring: "01", Partitions: 1021, Reason: "1 of 2 voters are alive, and a majority is 2",
		VoterSet:        &adminv1alpha1.VoterSet{ClusterId: "18e9-f5", Version: 2, Members: []string{"n1", "n2"}},
		PartitionCounts: &adminv1alpha1.PartitionCounts{Owned: 1021, Unprotected: 1021},
	}
	without := &adminv1alpha1.MembersResponse{
		Self: "n1", MayDecide: true, PartitionCounts: &adminv1alpha1.PartitionCounts{Owned: 340, Lost: 25},
		LostRules: []*adminv1alpha1.LostRule{{Domain: "api", Rule: "api/user", LeftNs: 2_470_400_000_000}},
	}
	off := &adminv1alpha1.MembersResponse{
		Self: "n2", ClocksAgree: proto.Bool(true), ClockCorrectionNs: -2e9, Reason: "no voter set is known yet",
		Members: []*adminv1alpha1.Member{{Name: "n1", State: "serving", Zone: "eu-1a", ClockAheadNs: proto.Int64(3e6)}, {Name: "n2", State: "serving", ClockAheadNs: proto.Int64(2.0015e9)}},
	}
	apart := &adminv1alpha1.MembersResponse{
		Self: "n1", ClocksAgree: proto.Bool(false),
		Members: []*adminv1alpha1.Member{{Name: "n1", State: "serving", ClockAheadNs: proto.Int64(0)}, {Name: "n2", State: "serving", ClockAheadNs: proto.Int64(-3600e9)}},
	}
	zones := &adminv1alpha1.MembersResponse{Self: "n1", Members: []*adminv1alpha1.Member{{Name: "n1", State: "serving", Zone: "eu-1a"}, {Name: "n2", State: "serving"}}}
	// A node of an earlier version says nothing of all this.
	early := &adminv1alpha1.MembersResponse{Self: "n1", Members: []*adminv1alpha1.Member{{Name: "n1", State: "serving"}}}
	for _, c := range []struct {
		name, format string
		r            *adminv1alpha1.MembersResponse
		want         string
	}{
		{"three", "text", whole, `
NAME  STATE    VOTER  ALIVE             ASSIGNED  OWNED  GRPC           VERSION
n1 *  serving  yes    yes               511       500    10.0.0.1:7460  v1
n2    serving  yes    no, silent 1m24s  510       21     10.0.0.2:7460  v1
n3    missing  yes    no                0         0      -              -
n4    joining  no     yes               0         0      -              -
1021 partitions, ring dacccd824680c3d6, as seen by n1 (*)
voter set: n1, n2, n3 (version 4 of 18e9-f5; a majority is 2)
n1 may decide
n1 owns 500 partitions, 1 of them without a complete replica elsewhere, 6 below their number of replicas; handing over 2, taking over 4, replicas 3, divergent states 5
`},
		{"without a majority", "text", lost, `
NAME  STATE  VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION
1021 partitions, ring 01, as seen by n1 (*)
voter set: n1, n2 (version 2 of 18e9-f5; a majority is 2)
n1 may not decide: 1 of 2 voters are alive, and a majority is 2
n1 owns 1021 partitions, 1021 of them without a complete replica elsewhere, 0 below their number of replicas; handing over 0, taking over 0, replicas 0, divergent states 0
`},
		{"the only voter", "text", &adminv1alpha1.MembersResponse{
			Self: "n1", MayDecide: true, VoterSet: &adminv1alpha1.VoterSet{Members: []string{"n1"}, Version: 3, ClusterId: "18e9-f5"},
		}, `
NAME  STATE  VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION
0 partitions, ring -, as seen by n1 (*)
voter set: n1 (version 3 of 18e9-f5; a majority is 1)
n1 is the only voter: rules with replication: sync wait for no replica
n1 may decide
n1 owns 0 partitions, 0 of them without a complete replica elsewhere, 0 below their number of replicas; handing over 0, taking over 0, replicas 0, divergent states 0
`},
		{"health", "text", &adminv1alpha1.MembersResponse{Self: "n1", Health: &adminv1alpha1.Health{
			Status: "degraded", Summary: "Degraded: n3, a voter, has been silent for 12s", Causes: []*adminv1alpha1.HealthCause{{Severity: "warning"}},
		}}, `
Degraded: n3, a voter, has been silent for 12s
NAME  STATE  VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION
` + nothing},
		{"lost state", "text", without, `
NAME  STATE  VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION
0 partitions, ring -, as seen by n1 (*)
voter set: unknown
n1 may decide
n1 owns 340 partitions, 0 of them without a complete replica elsewhere, 0 below their number of replicas; handing over 0, taking over 0, replicas 0, divergent states 0
counters of 25 partitions of n1 are lost: bring back the nodes that had them, or ` + "`sluice members accept-loss`" + `
  api/user denies units that may have been spent, for 41m10s more at most
`},
		{"lost state", "json", without, `
{"self":"n1","ring":"","partitions":0,"may_decide":true,"partition_counts":{"owned":340,"unprotected":0,"below_replicas":0,"handing_over":0,"replicas":0,"taking_over":0,"divergent":0,"lost":25},` +
			`"lost_rules":[{"domain":"api","rule":"api/user","left":2470.4}],"members":[]}
`},
		{"of an earlier version", "text", early, `
NAME  STATE    VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION
n1 *  serving  no     no     0         0      -     -
` + nothing},
		{"zones", "wide", zones, `
NAME  STATE    VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION  HTTP  PEER  GOSSIP  ZONE   BOOT
n1 *  serving  no     no     0         0      -     -        -     -     -       eu-1a  -
n2    serving  no     no     0         0      -     -        -     -     -       -      -
` + nothing},
		{"a clock that is off", "text", off, `
NAME  STATE    VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION
n1    serving  no     no     0         0      -     -
n2 *  serving  no     no     0         0      -     -
0 partitions, ring -, as seen by n2 (*)
voter set: unknown
n2 may not decide: no voter set is known yet
n2 owns 0 partitions, 0 of them without a complete replica elsewhere, 0 below their number of replicas; handing over 0, taking over 0, replicas 0, divergent states 0
clocks: off the voters' median: n2 +2.002s
n2 corrects its clock by -2.000s for new windows
`},
		{"clocks without a majority", "text", apart, `
NAME  STATE    VOTER  ALIVE  ASSIGNED  OWNED  GRPC  VERSION
n1 *  serving  no     no     0         0      -     -
n2    serving  no     no     0         0      -     -
` + nothing + `clocks: no majority agrees, so each node aligns new windows with its own clock; against n1: n2 -3600.000s
`},
		{"a clock that is off", "json", off, `
{"self":"n2","ring":"","partitions":0,"may_decide":false,"reason":"no voter set is known yet",` +
			`"clocks_agree":true,"clock_correction":-2,"members":[` +
			`{"name":"n1","state":"serving","voter":false,"alive":false,"partitions":0,"owned":0,"grpc":"","http":"","peer":"","gossip":"","version":"","boot":"","zone":"eu-1a","clock_ahead":0.003},` +
			`{"name":"n2","state":"serving","voter":false,"alive":false,"partitions":0,"owned":0,"grpc":"","http":"","peer":"","gossip":"","version":"","boot":"","clock_ahead":2.0015}]}
`},
		{"three", "json", whole, `
{"self":"n1","ring":"dacccd824680c3d6","partitions":1021,"voter_set":{"cluster_id":"18e9-f5","version":4,"members":["n1","n2","n3"]},` +
			`"may_decide":true,"partition_counts":{"owned":500,"unprotected":1,"below_replicas":6,"handing_over":2,"replicas":3,"taking_over":4,"divergent":5,"lost":0},"members":[` +
			`{"name":"n1","state":"serving","voter":true,"alive":true,"partitions":511,"owned":500,"grpc":"10.0.0.1:7460","http":"10.0.0.1:7461",` +
			`"peer":"10.0.0.1:7462","gossip":"10.0.0.1:7463","version":"v1","boot":"18e9-f5","silent":0},` +
			`{"name":"n2","state":"serving","voter":true,"alive":false,"partitions":510,"owned":21,"grpc":"10.0.0.2:7460","http":"10.0.0.2:7461",` +
			`"peer":"10.0.0.2:7462","gossip":"10.0.0.2:7463","version":"v1","boot":"18ea-a7","silent":83.04},` +
			`{"name":"n3","state":"missing","voter":true,"alive":false,"partitions":0,"owned":0,"grpc":"","http":"","peer":"","gossip":"","version":"","boot":""},` +
			`{"name":"n4","state":"joining","voter":false,"alive":true,"partitions":0,"owned":0,"grpc":"","http":"","peer":"","gossip":"","version":"",` +
			`"boot":"18eb-00","silent":0.0015}]}
`},
	} {
		var out bytes.Buffer
		do(t, write(&out, c.format, membersText(c.r, c.format == "wide"), jsonOf(c.r)))
		if got := "\n" + out.String(); got != c.want && (c.format != "json" || !sameJSON(decoded(t, got), decoded(t, c.want))) {
			t.Errorf("%s, %s:%s\nwant:%s", c.name, c.format, got, c.want)
		}
	}
}

func decoded(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// sameJSON reports whether got is want, but for the order of fields, and for further fields that are empty.
func sameJSON(got, want any) bool {
	switch g := got.(type) {
	case map[string]any:
		w, _ := want.(map[string]any)
		for name, v := range g {
			if _, wanted := w[name]; !wanted {
				if !slices.ContainsFunc([]any{"", 0.0, false, []any{}}, func(e any) bool { return reflect.DeepEqual(v, e) }) {
					return false
				}
			} else if !sameJSON(v, w[name]) {
				return false
			}
		}
		for name := range w {
			if _, found := g[name]; !found {
				return false
			}
		}
		return w != nil
	case []any:
		w, ok := want.([]any)
		return ok && slices.EqualFunc(g, w, sameJSON)
	}
	return reflect.DeepEqual(got, want)
}

// forgetful answers ForgetMember with err, or with a set without the member.
type forgetful struct {
	adminv1alpha1.UnimplementedAdminServiceServer
	err error
}

func (s *forgetful) ForgetMember(_ context.Context, r *adminv1alpha1.ForgetMemberRequest) (*adminv1alpha1.ForgetMemberResponse, error) {
	if s.err != nil {
		return nil, s.err
	}
	return &adminv1alpha1.ForgetMemberResponse{VoterSet: &adminv1alpha1.VoterSet{ClusterId: "18e9-f5", Version: 5, Members: []string{"n1", "not-" + r.Name}}}, nil
}

func TestForgetCommand(t *testing.T) {
	node := new(forgetful)
	addr := serveGRPC(t, func(s *grpc.Server) { adminv1alpha1.RegisterAdminServiceServer(s, node) })
	for _, c := range []struct {
		name   string
		args   []string
		err    error
		code   int
		stdout string
		stderr string
	}{
		{"forgotten", []string{"n3"}, nil, 0, "forgot n3\nvoter set: n1, not-n3 (version 5 of 18e9-f5; a majority is 2)\n", ""},
		{"forgotten, as JSON", []string{"-o", "json", "n3"}, nil, 0,
			`{"forgotten":"n3","voter_set":{"cluster_id":"18e9-f5","members":["n1","not-n3"],"version":5}}` + "\n", ""},
		{"living", []string{"n3"}, status.Error(codes.FailedPrecondition, `cannot forget "n3": it is alive; stop it first`), 1, "",
			"sluice: " + addr + `: cannot forget "n3": it is alive; stop it first` + "\n"},
		{"not counted", []string{"n3"}, status.Error(codes.NotFound, `cannot forget "n3": it is not in the voter set`), 1, "",
			"sluice: " + addr + `: cannot forget "n3": it is not in the voter set` + "\n"},
		{"from elsewhere", []string{"n3"}, status.Error(codes.PermissionDenied, "answered on loopback only"), 1, "",
			"sluice: " + addr + ": answered on loopback only\n"},
		{"no name", []string{""}, status.Error(codes.InvalidArgument, "name: empty"), 2, "", "sluice: name: empty\n"},
		{"leaving", []string{"n3"}, status.Error(codes.Unavailable, "this node is leaving; ask another"), 3, "",
			"sluice: " + addr + ": this node is leaving; ask another\n"},
		{"no argument", nil, nil, 2, "", "sluice: accepts 1 arg(s), received 0; usage: sluice members forget NAME [flags]\n"},
		{"two arguments", []string{"n2", "n3"}, nil, 2, "", "sluice: accepts 1 arg(s), received 2; usage: sluice members forget NAME [flags]\n"},
		{"bad output", []string{"-o", "xml", "n3"}, nil, 2, "", "sluice: --output: \"xml\": want text, json\n"},
	} {
		node.err = c.err
		code, stdout, stderr := cli(append([]string{"members", "forget", "--addr", addr}, c.args...)...)
		if code != c.code || stdout != c.stdout || stderr != c.stderr {
			t.Errorf("%s: exit code %d\nstdout: %s\nstderr: %s\nwant %d\nstdout: %s\nstderr: %s", c.name, code, stdout, stderr, c.code, c.stdout, c.stderr)
		}
	}
	if code, _, stderr := cli("members", "forgets"); code != 2 || !strings.Contains(stderr, "forgets") {
		t.Errorf("an unknown subcommand: %d %s", code, stderr)
	}
}

// forgetItself: a node takes the command for that of its own machine, and answers for itself.
func forgetItself(t *testing.T, n *running) {
	code, stdout, stderr := cli("members", "forget", "--addr", n.grpc, "n1")
	if code != 1 || stdout != "" || !strings.Contains(stderr, `cannot forget "n1": `) {
		t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, stdout, stderr)
	}
}

// acceptLossCommand: it says what it does, asks before, and tells how many partitions it was about.
func acceptLossCommand(t *testing.T, n *running) {
	addr := n.grpc
	if code, out, errs := cliWith("no\n", "members", "accept-loss", "--addr", addr); code != exitUsage || out != "" ||
		!strings.Contains(errs, "every limit may be admitted once more") || !strings.Contains(errs, "nothing was done") {
		t.Errorf("without a yes: %d %s %s", code, out, errs)
	}
	if code, out, errs := cliWith("yes\n", "members", "accept-loss", "--addr", addr); code != 0 || out != "accepted the loss of 0 partitions; told -\n" {
		t.Errorf("with a yes: %d %s %s", code, out, errs)
	}
	if code, out, errs := cli("members", "accept-loss", "--yes", "-o", "json", "--addr", addr); code != 0 || out != "{\"partitions\":0,\"told\":[]}\n" {
		t.Errorf("as JSON: %d %s %s", code, out, errs)
	}
}

// TestBootstrapCommand: a node that waits in vain founds a cluster when it is told to, after a warning and a yes.
func TestBootstrapCommand(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	s.BootstrapExpect = 3
	n := startNodeUnready(t, s)
	addr := n.grpc
	await(t, "waiting", func() bool {
		_, reasons := n.Ready()
		return strings.Contains(strings.Join(reasons, "; "), "waiting for 2 more nodes to bootstrap with: --bootstrap-expect is 3, have n1")
	})
	if code, out, errs := cli("health", "--addr", addr); code != 1 || out != "" || !strings.Contains(errs, addr+" is not ready: still joining the cluster") {
		t.Errorf("joining: exit code %d, %q, %s", code, out, errs)
	}
	if code, out, errs := cliWith("no\n", "members", "bootstrap", "--addr", addr); code != exitUsage || out != "" || !strings.Contains(errs, "there are two clusters") ||
		!strings.Contains(errs, "nothing was done") {
		t.Errorf("without a yes: %d %s %s", code, out, errs)
	}
	if code, out, errs := cliWith("yes\n", "members", "bootstrap", "--addr", addr); code != 0 || !strings.Contains(out, "founded a new cluster\nvoter set: n1 (version 1") {
		t.Errorf("with a yes: %d %s %s", code, out, errs)
	}
	await(t, "ready", func() bool { ok, _ := n.Ready(); return ok })
	if code, _, errs := cli("members", "bootstrap", "--yes", "--addr", addr); code != exitDenied || !strings.Contains(errs, "this node has quorum") {
		t.Errorf("with quorum: %d %s", code, errs)
	}
}
