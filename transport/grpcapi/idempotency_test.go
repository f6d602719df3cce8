package grpcapi

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestIdempotencyKey: a charge is made once with a key, through a call and on a stream, and a key that does not fit is rejected.
// Nodes say that they have the feature.
func TestIdempotencyKey(t *testing.T) {
	d := openNode(t)
	nodes, err := d.client.Nodes(t.Context(), &sluicev1.NodesRequest{})
	if err != nil || !slices.Equal(nodes.GetFeatures(), []string{"idempotency_key", "leases", "reservations"}) {
		t.Fatalf("%v %v", nodes, err)
	}
	charge := func(key string) *sluicev1.CheckRequest {
		r := request(user("x"))
		r.Checks[0].Verb, r.IdempotencyKey, r.Requires = sluicev1.Verb_VERB_CHARGE, key, nodes.GetFeatures()
		return r
	}
	s := openStream(t, d)
	for i, key := range []string{"k", "k", "k2"} {
		want := []int64{2, 2, 1}[i]
		res, err := d.client.Check(t.Context(), charge(key))
		if err != nil || !res.GetAllowed() || res.GetDecisions()[0].GetRemaining() != want {
			t.Errorf("call %d: %v %v, want %d left", i, res, err, want)
		}
		if err := s.Send(charge(key)); err != nil {
			t.Fatal(err)
		}
		if res := recv(t, s); !res.GetAllowed() || res.GetDecisions()[0].GetRemaining() != want {
			t.Errorf("request %d: %v, want %d left", i, res, want)
		}
	}
	check := charge("k")
	check.Checks[0].Verb = sluicev1.Verb_VERB_CHECK
	for name, r := range map[string]*sluicev1.CheckRequest{"of a check": check, "with a space": charge("a key")} {
		if _, err := d.client.Check(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Send(r); err != nil {
			t.Fatal(err)
		}
		if e := recv(t, s).GetError(); e.GetCode() != sluicev1.ErrorCode_ERROR_CODE_INVALID || e.GetField() != "idempotency_key" {
			t.Errorf("%s: %v", name, e)
		}
	}
}
