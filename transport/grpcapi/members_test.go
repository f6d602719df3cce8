package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/access"
)

// clustered opens an API to a node of which the cluster is o.
func clustered(t *testing.T, o limiter.Overview, forget func(context.Context, string) error) *api {
	return open(t, Config{Limiter: apitest.NewLimiter(t, apitest.NewNode(t), apitest.Rules, member.Member{}, func(c *limiter.Config) {
		c.Cluster.(*apitest.Cluster).Seen = func(context.Context) limiter.Overview { return o }
		c.Cluster.(*apitest.Cluster).Forgets = forget
	})})
}

func TestMembers(t *testing.T) {
	for _, c := range []struct {
		name string
		o    limiter.Overview
		want *adminv1alpha1.MembersResponse
	}{
		{"nothing known yet", limiter.Overview{}, &adminv1alpha1.MembersResponse{PartitionCounts: &adminv1alpha1.PartitionCounts{}}},
		{
			"alone, before there is a set",
			apitest.Alone,
			&adminv1alpha1.MembersResponse{
				Self: "n1", Reason: "no voter set is known yet", PartitionCounts: &adminv1alpha1.PartitionCounts{},
				Members: []*adminv1alpha1.Member{{
					Name: "n1", Boot: "b1", State: "serving", GossipAddress: "g", PeerAddress: "p", GrpcAddress: "r", HttpAddress: "127.0.0.1:7461",
					Version: "v1", Alive: true, SilentNs: proto.Int64(0),
				}},
			},
		},
		{
			"two of three",
			apitest.TwoOfThree,
			&adminv1alpha1.MembersResponse{
				Self: "n1", MayDecide: true,
				VoterSet:        &adminv1alpha1.VoterSet{ClusterId: "b1", Version: 4, Members: []string{"n1", "n2", "n3"}},
				PartitionCounts: &adminv1alpha1.PartitionCounts{Owned: 500, Unprotected: 1, HandingOver: 2, Replicas: 3, TakingOver: 4, Divergent: 5, BelowReplicas: 7},
				Members: []*adminv1alpha1.Member{
					{Name: "n1", Boot: "b1", State: "serving", Voter: true, Alive: true, SilentNs: proto.Int64(0), Owned: 500, Zone: "a"},
					{Name: "n2", Boot: "b2", State: "leaving", Voter: true, SilentNs: proto.Int64(90e9), Owned: 521},
					{Name: "n3", State: "missing", Voter: true},
				},
			},
		},
	} {
		got, err := clustered(t, c.o, nil).admin.Members(t.Context(), &adminv1alpha1.MembersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"two of three": "degraded"}[c.name]; got.Health.GetStatus() != cmp.Or(want, "no_quorum") || len(got.Health.Causes) == 0 ||
			!strings.HasSuffix(got.Health.Summary, got.Health.Causes[0].Text) {
			t.Errorf("%s: %v", c.name, got.Health)
		}
		if got.Health = nil; !proto.Equal(got, c.want) {
			t.Errorf("%s: %v\nwant %v", c.name, got, c.want)
		}
	}
}

// reported is a limiter.Service with the reports of two nodes.
type reported struct{ limiter.Service }

func (reported) Status(context.Context) limiter.Status {
	return limiter.Status{
		Members: limiter.Members{Self: "n1", Health: limiter.Health{
			Status: limiter.StaleRules, Summary: "Stale rules: x", Causes: []limiter.Cause{{Severity: limiter.Warning, Text: "x", Doc: "y"}},
		}},
		Nodes: []facts.Node{
			{
				Name: "n1", MayDecide: true, Rules: "abc", PartitionCounts: facts.PartitionCounts{Owned: 5, Lost: 1},
				Files: []facts.File{{Label: "api", Expires: 60, Left: 0.5}, {Label: "secret", Error: "too short"}},
			},
			{
				Name: "n2", Reason: "alone", RulesError: "line 3", Insecure: []string{"no --callers"}, Region: "eu", RoleProblem: "few are heard",
				Regions: []facts.Region{{Name: "us", State: facts.RegionLinked, InState: 5, RTT: 6}},
			},
		},
		Missing: []string{"n3"},
	}
}

func TestStatus(t *testing.T) {
	d := open(t, Config{Limiter: reported{newLimiter(t, apitest.NewNode(t))}})
	got, err := (admin{Server: d.Server}).Status(access.AsOperator(t.Context()), &adminv1alpha1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1alpha1.StatusResponse{
		Members: &adminv1alpha1.MembersResponse{Self: "n1", PartitionCounts: &adminv1alpha1.PartitionCounts{}, Health: &adminv1alpha1.Health{
			Status: "stale_rules", Summary: "Stale rules: x", Causes: []*adminv1alpha1.HealthCause{{Severity: "warning", Text: "x", Doc: "y"}},
		}},
		Nodes: []*adminv1alpha1.NodeReport{
			{
				Name: "n1", MayDecide: true, Rules: "abc", PartitionCounts: &adminv1alpha1.PartitionCounts{Owned: 5, Lost: 1},
				Files: []*adminv1alpha1.FollowedFile{{Label: "api", Expires: 60, Left: 0.5}, {Label: "secret", Error: "too short"}},
			},
			{
				Name: "n2", Reason: "alone", RulesError: "line 3", PartitionCounts: &adminv1alpha1.PartitionCounts{}, Insecure: []string{"no --callers"}, Region: "eu",
				RoleProblem: "few are heard", Regions: []*adminv1alpha1.RegionReport{{Name: "us", State: "linked", InStateNs: 5, RttNs: 6}},
			},
		},
		Missing: []string{"n3"},
	}
	if !proto.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	if _, err := d.admin.Status(t.Context(), &adminv1alpha1.StatusRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("no operator: %v", err)
	}
}

func TestForgetMember(t *testing.T) {
	operator := access.AsOperator(t.Context())
	for _, c := range []struct {
		name string
		err  error
		ctx  context.Context
		code codes.Code
		want string
	}{
		{"n3", nil, operator, codes.OK, ""},
		{"n3", nil, t.Context(), codes.PermissionDenied, limiter.ErrNotOperator.Message},
		{"n3", nil, peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5000}}), codes.PermissionDenied, limiter.ErrNotOperator.Message},
		{"", nil, operator, codes.InvalidArgument, "name: empty"},
		{"n3", member.ErrNotVoter, operator, codes.NotFound, `cannot forget "n3": it is not in the voter set`},
		{"n3", errors.New("the node does not run"), operator, codes.Unavailable, `cannot forget "n3": the node does not run`},
	} {
		var asked []string
		set := limiter.VoterSet{ClusterID: "b1", Version: 5, Members: []string{"n1", "n2"}}
		d := clustered(t, limiter.Overview{State: limiter.State{Set: set}}, func(_ context.Context, name string) error {
			asked = append(asked, name)
			return c.err
		})
		got, err := (admin{Server: d.Server}).ForgetMember(c.ctx, &adminv1alpha1.ForgetMemberRequest{Name: c.name})
		st := status.Convert(err)
		if st.Code() != c.code || st.Message() != c.want {
			t.Errorf("%v: %s\nwant %v: %s", st.Code(), st.Message(), c.code, c.want)
		}
		if want := (&adminv1alpha1.VoterSet{ClusterId: "b1", Version: 5, Members: []string{"n1", "n2"}}); err == nil && !proto.Equal(got.GetVoterSet(), want) {
			t.Errorf("%v", got)
		}
		if err != nil && (len(st.Details()) != 2 || st.Details()[0].(*sluicev1.Error).GetMessage() == "") {
			t.Errorf("%s: details %v", c.want, st.Details())
		}
		if rejected := c.code == codes.PermissionDenied || c.code == codes.InvalidArgument; rejected != (len(asked) == 0) {
			t.Errorf("%s: asked to forget %q", c.want, asked)
		}
	}
}

// A client of the gRPC port is no operator, and a node that is leaving forgets nobody.
func TestForgetMemberServed(t *testing.T) {
	d := clustered(t, limiter.Overview{}, func(context.Context, string) error { return nil })
	_, client := d.admin.ForgetMember(t.Context(), &adminv1alpha1.ForgetMemberRequest{Name: "n3"})
	d.Drain()
	_, leaving := (admin{Server: d.Server}).ForgetMember(access.AsOperator(t.Context()), &adminv1alpha1.ForgetMemberRequest{Name: "n3"})
	if status.Code(client) != codes.PermissionDenied || status.Code(leaving) != codes.Unavailable {
		t.Errorf("%v, %v", client, leaving)
	}
}
