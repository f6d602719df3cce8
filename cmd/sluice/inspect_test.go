package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func inspectCommand(t *testing.T, n *running) {
	addr := n.grpc
	for range 2 {
		cli("check", "--addr", addr, "--domain", "auth", "user=ann")
	}
	code, out, errs := cli("inspect", "--addr", addr, "--domain", "auth", "user=ann")
	for _, want := range []string{
		`(?m)^key +auth user=ann$`, `(?m)^rule +auth/user \(the rule at .*\)$`, `(?m)^partition +\d+, generation \d+$`,
		`(?m)^owner +n1$`, `(?m)^replicas +-$`, `(?m)^\[##########\] 2 +0 +\S+ +2 in .* auth/user$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("want %s in\n%s(%d %s)", want, out, code, errs)
		}
	}
	code, out, _ = cli("inspect", "--addr", addr, "--domain", "auth", "user=ann", "-o", "json")
	var got struct {
		Owner   string
		Counted bool
		Shown   []struct{ Value string }
		Limits  []struct {
			Limit                   string
			Count, Spent, Remaining int64
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("%d %s %v", code, out, err)
	}
	if l := got.Limits; len(l) != 1 || l[0].Spent != 2 || l[0].Remaining != 0 || l[0].Count != 2 || l[0].Limit != "2 in 1h (fixed window)" || got.Owner != "n1" || !got.Counted || got.Shown[0].Value != "ann" {
		t.Errorf("%+v", got)
	}
	if _, out, _ = cli("inspect", "--addr", addr, "--domain", "auth", "user=new"); !strings.Contains(out, "there is no counter") {
		t.Errorf("nothing spent: %s", out)
	}
	if _, out, _ = cli("inspect", "--addr", addr, "--domain", "ahut", "user=x"); !strings.Contains(out, `none: no rule file describes the domain "ahut"; known: auth`) {
		t.Errorf("unknown domain: %s", out)
	}
	if _, out, _ = cli("inspect", "--addr", addr, "--domain", "auth", "nobody=x"); !strings.Contains(out, "none: nothing matches nobody=x at level 1") || strings.Contains(out, "owner") {
		t.Errorf("no rule: %s", out)
	}
	for _, args := range [][]string{{"--domain", "auth"}, {"--domain", "auth", "=x"}, {"user=x"}, {"--domain", "auth", "user=x", "-o", "xml"}} {
		if code, _, errs := cli(append([]string{"inspect", "--addr", addr}, args...)...); code != exitUsage {
			t.Errorf("%q: %d %s", args, code, errs)
		}
	}
}

func TestInspectionText(t *testing.T) {
	req := &adminv1alpha1.InspectRequest{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "ann"}}}
	got := inspectionText(req, &adminv1alpha1.InspectResponse{
		Shown: []*sluicev1.Entry{{Key: "user", Value: "redacted:0123456789ab"}}, Reason: "the rule at r.yaml:3 applies", Rule: "per user", Shadow: true,
		Partition: 12, Generation: 3, Replicas: []string{"n2"}, InitialSync: []string{"n3"}, Counted: true, Grants: 2, Granted: 30,
		Leases: []*adminv1alpha1.LeaseLeft{{Node: "n2", Left: 7}}, Denying: []string{"n3"}, Missing: []string{"n4"},
		Limits: []*adminv1alpha1.LimitStanding{{Name: "per user", Limit: &sluicev1.Limit{Count: 100, PeriodNs: 1e9, Algorithm: sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET}, Spent: 130, ResetAfterNs: 1_300_000_001}},
	})
	want := `key            shop user=ann
shown as       user=redacted:0123456789ab
rule           "per user", shadow (the rule at r.yaml:3 applies)
partition      12, generation 3
owner          no node that may decide has answered
replicas       n2
initial sync   n3
granted        30 in 2 leases; n2 has 7
denial caches  n3
no answer      from n4

SPENT             REMAINING  RESETS IN  LIMIT                     NAME
[##########] 130  0          1.4s       100 in 1s (token bucket)  "per user"
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
