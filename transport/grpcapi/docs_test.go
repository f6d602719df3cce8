package grpcapi

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// What docs/use/api.md shows of gRPC can be sent and could come back.
func TestDocumentedCall(t *testing.T) {
	doc, err := os.ReadFile("../../docs/use/api.md")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := os.ReadFile("../../docs/internals/admin-api.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)grpcurl -plaintext -d '(.*?)' 127.0.0.1:7460 (\\S+)\n```\n\n```json\n(.*?)```").FindStringSubmatch(string(doc))
	if m == nil {
		t.Fatal("docs/use/api.md has no grpcurl call with its answer")
	}
	var req sluicev1.CheckRequest
	if err := protojson.Unmarshal([]byte(m[1]), &req); err != nil {
		t.Error(err)
	}
	if want := strings.TrimPrefix(sluicev1.RateLimitService_Check_FullMethodName, "/"); m[2] != want {
		t.Errorf("method %s, want %s", m[2], want)
	}
	var res sluicev1.CheckResponse
	if err := protojson.Unmarshal([]byte(m[3]), &res); err != nil {
		t.Error(err)
	}
	for _, msg := range []protoreflect.ProtoMessage{
		&sluicev1.Decision{}, &sluicev1.Limit{}, &sluicev1.Check{},
		&adminv1alpha1.MembersResponse{}, &adminv1alpha1.Member{}, &adminv1alpha1.VoterSet{}, &adminv1alpha1.PartitionCounts{},
		&adminv1alpha1.ForgetMemberRequest{}, &adminv1alpha1.ForgetMemberResponse{},
		&sluicev1.ReserveRequest{}, &sluicev1.ReserveResponse{}, &sluicev1.SpendRequest{}, &sluicev1.SpendResponse{}, &sluicev1.ExtendRequest{},
		&sluicev1.ExtendResponse{}, &sluicev1.SettleRequest{}, &sluicev1.SettleResponse{}, &sluicev1.HeldRequest{}, &sluicev1.HeldResponse{}, &sluicev1.Holding{},
		&sluicev1.ReportLoadRequest{}, &sluicev1.ReportLoadResponse{},
		&adminv1alpha1.TopRequest{}, &adminv1alpha1.TopResponse{}, &adminv1alpha1.TopKey{},
		&adminv1alpha1.InspectRequest{}, &adminv1alpha1.InspectResponse{}, &adminv1alpha1.LimitStanding{}, &adminv1alpha1.LeaseLeft{},
	} {
		fields := msg.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if name := string(fields.Get(i).Name()); !strings.Contains(string(doc)+string(admin), "`"+name+"`") {
				t.Errorf("%s is not in docs/use/api.md", fields.Get(i).FullName())
			}
		}
	}
}
