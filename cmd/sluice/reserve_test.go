package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// ledger is a node with one reservation of 10 units.
type ledger struct {
	sluicev1.UnimplementedRateLimitServiceServer
	reserved *sluicev1.ReserveRequest
}

func (l *ledger) Reserve(_ context.Context, req *sluicev1.ReserveRequest) (*sluicev1.ReserveResponse, error) {
	l.reserved = req
	d := &sluicev1.Decision{Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED, Source: sluicev1.Source_SOURCE_OWNED, Owner: "n1", Rule: "llm/user", Limit: new(int64(100)), Remaining: new(int64(90))}
	switch units := req.GetUnits(); {
	case req.Units != nil && units < 1:
		return nil, status.Error(codes.InvalidArgument, "units: 0; want 1 or more")
	case units == 100:
		d = &sluicev1.Decision{Error: &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_REJECTED, Message: "use another key"}}
		return &sluicev1.ReserveResponse{Decisions: []*sluicev1.Decision{d}}, nil
	case units > 100:
		d.Allowed, d.Verdict, d.RetryAfterNs = false, sluicev1.Verdict_VERDICT_DENIED, new(int64(2e9))
		return &sluicev1.ReserveResponse{Decisions: []*sluicev1.Decision{d}, RetryAfterNs: d.RetryAfterNs}, nil
	}
	return &sluicev1.ReserveResponse{Decisions: []*sluicev1.Decision{d}, Reservation: "r-1", Units: 10, ExpiresAfterNs: 60e9, Allowed: true}, nil
}

func (l *ledger) Spend(_ context.Context, req *sluicev1.SpendRequest) (*sluicev1.SpendResponse, error) {
	if req.Reservation != "r-1" {
		return nil, status.Error(codes.NotFound, "it was settled")
	}
	return &sluicev1.SpendResponse{Allowed: req.Units <= 10, Left: 10 - min(req.Units, 10)}, nil
}

func (l *ledger) Extend(_ context.Context, req *sluicev1.ExtendRequest) (*sluicev1.ExtendResponse, error) {
	if req.More > 100 {
		return &sluicev1.ExtendResponse{Units: 10, ExpiresAfterNs: 60e9, RetryAfterNs: new(int64(2e9))}, nil
	}
	return &sluicev1.ExtendResponse{Allowed: true, Units: 10 + req.More, ExpiresAfterNs: max(60e9, req.TtlNs)}, nil
}

func (l *ledger) Settle(_ context.Context, req *sluicev1.SettleRequest) (*sluicev1.SettleResponse, error) {
	return &sluicev1.SettleResponse{Charged: req.Actual, Returned: max(0, 10-req.Actual), Late: req.Actual > 10, Repeated: req.Actual == 11}, nil
}

func (l *ledger) Held(_ context.Context, req *sluicev1.HeldRequest) (*sluicev1.HeldResponse, error) {
	if req.Descriptor_[0].Value == "new" {
		return &sluicev1.HeldResponse{}, nil
	}
	return &sluicev1.HeldResponse{Holdings: []*sluicev1.Holding{{Id: "1f", Use: "reservation", Caller: "billing", Units: 10, SinceNs: 1.5e9, ExpiresAfterNs: 60e9}}, Count: 2, Units: 12}, nil
}

func TestReservationCommands(t *testing.T) {
	l := &ledger{}
	addr := serveGRPC(t, func(s *grpc.Server) { sluicev1.RegisterRateLimitServiceServer(s, l) })
	reserve := []string{"reserve", "--domain", "llm", "user=ann"}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{append(reserve, "--units", "10", "--least", "2", "--ttl", "1m", "--idempotency-key", "k"), exitOK, "ALLOWED  90/100 left  (rule llm/user, node n1)\n10 units for 1m\nr-1\n"},
		{append(reserve, "-o", "json"), exitOK, `"expires_after":60,"reservation":"r-1","units":10}`},
		{append(reserve, "-o", "json"), exitOK, `{"allowed":true,"decisions":[{"allowed":true,"matched":true,"verdict":"allowed","limit":100,`},
		{append(reserve, "--units", "101"), exitDenied, "DENIED  90/100 left, retry in 2.0s  (rule llm/user, node n1)\n"},
		{append(reserve, "--units", "101", "-o", "json"), exitDenied, `"retry_after":2`},
		{append(reserve, "--units", "100"), exitDenied, "sluice: use another key\n"},
		{append(reserve, "--units", "0"), exitUsage, "sluice: units: 0; want 1 or more\n"},
		{[]string{"reserve", "llm", "user=ann"}, exitUsage, "did you mean --domain llm user=ann?"},
		{[]string{"reserve", "--domain", "llm", "user"}, exitUsage, "want KEY=VALUE"},
		{append(reserve, "--ttl", "60"), exitUsage, `--ttl: "60"; want a time with its unit`},
		{[]string{"spend", "r-1", "4"}, exitOK, "SPENT  6 units left\n"},
		{[]string{"spend", "r-1", "11"}, exitDenied, "DENIED  0 units left\n"},
		{[]string{"spend", "r-1", "4", "-o", "json"}, exitOK, `{"allowed":true,"left":6}`},
		{[]string{"spend", "r-2", "4"}, exitDenied, ": it was settled\n"},
		{[]string{"spend", "r-1"}, exitUsage, "usage: sluice spend ID UNITS"},
		{[]string{"spend", "r-1", "few"}, exitUsage, `argument "few": want a whole number of units`},
		{[]string{"extend", "r-1", "--more", "5", "--ttl", "90s"}, exitOK, "EXTENDED  15 units left for 1m30s\n"},
		{[]string{"extend", "r-1", "--more", "101"}, exitDenied, "DENIED  10 units left for 1m, retry in 2.0s\n"},
		{[]string{"extend", "r-1"}, exitUsage, "name units with --more, a time with --ttl, or both"},
		{[]string{"settle", "r-1", "3"}, exitOK, "SETTLED  3 units charged, 7 free again\n"},
		{[]string{"settle", "r-1", "11"}, exitOK, "SETTLED  11 units charged, 0 free again, after the deadline, by an earlier call\n"},
		{[]string{"settle", "r-1", "3", "-o", "json"}, exitOK, `{"charged":3,"late":false,"repeated":false,"returned":7}`},
		{[]string{"held", "--domain", "llm", "user=ann"}, exitOK, "ID  USE          CALLER   UNITS  SINCE  EXPIRES IN\n1f  reservation  billing  10     1.5s   1m\n\n2 in all, 12 units\n"},
		{[]string{"held", "--domain", "llm", "user=new"}, exitOK, "no open reservations or leases\n"},
		{[]string{"held", "--domain", "llm", "user=ann", "-o", "json"}, exitOK, `"holdings":[{"caller":"billing","expires_after":60,"id":"1f","since":1.5,"units":10,"use":"reservation"}]`},
		{[]string{"held", "llm", "user=ann"}, exitUsage, "--domain"},
	} {
		code, out, errs := cli(append([]string{c.args[0], "--addr", addr}, c.args[1:]...)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%q: exit code %d\n%s%s\nwant %d %s", c.args, code, out, errs, c.code, c.want)
		}
	}
	if _, _, errs := cli(append(reserve, "--addr", addr, "--units", "10", "--least", "2", "--ttl", "1m", "--idempotency-key", "k")...); errs != "" {
		t.Error(errs)
	}
	if q := l.reserved; q.GetUnits() != 10 || q.GetLeast() != 2 || q.TtlNs != 60e9 || q.IdempotencyKey != "k" || q.Checks[0].Cost != nil || q.Checks[0].Domain != "llm" || q.Checks[0].Descriptor_[0].Key != "user" {
		t.Errorf("sent %v", q)
	}
}
