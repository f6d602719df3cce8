package grpcapi

import (
	"crypto/rand"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/apitest"
)

// fieldOf returns the code of a call's error, and the field at fault.
func fieldOf(err error) (codes.Code, string) {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if e, ok := d.(*sluicev1.Error); ok {
			return st.Code(), e.GetField()
		}
	}
	return st.Code(), ""
}

func TestReserve(t *testing.T) {
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	d := open(t, Config{Limiter: f})
	res, err := d.client.Reserve(t.Context(), &sluicev1.ReserveRequest{
		Checks: []*sluicev1.Check{user("ann"), user("bob")}, Units: new(int64(2)), Least: new(int64(1)), TtlNs: int64(2 * time.Minute), IdempotencyKey: "k", TimeoutNs: int64(time.Minute), WaitNs: int64(time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	if !res.Allowed || res.Reservation != apitest.ID || res.Units != 2 || res.ExpiresAfterNs != int64(2*time.Minute) || res.RetryAfterNs != nil ||
		len(res.Decisions) != 2 || res.Decisions[1].GetRemaining() != 1 || res.Decisions[1].Rule != "shop/user" {
		t.Errorf("%v", res)
	}
	if want := (limiter.ReserveRequest{Units: 2, Least: 1, TTL: 2 * time.Minute, Wait: time.Second}); f.Reserved != want || f.Key != "k" {
		t.Errorf("%+v, key %q", f.Reserved, f.Key)
	}
	res, err = d.client.Reserve(t.Context(), &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{user("ann"), user("new")}, Units: new(int64(2))})
	if err != nil || res.Allowed || res.Reservation != "" || res.Units != 0 || res.GetRetryAfterNs() <= 0 || res.Decisions[1].Verdict != sluicev1.Verdict_VERDICT_DENIED_BY_OTHERS {
		t.Errorf("%v %v", res, err)
	}
	// A decision is that of a check.
	read := user("ann")
	read.Verb, read.Cost = sluicev1.Verb_VERB_READ, new(int64(2))
	checked, err := d.client.Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{read}})
	if err != nil || checked.Decisions[0].Rule != res.Decisions[0].Rule || !proto.Equal(checked.Decisions[0].Response, res.Decisions[0].Response) || checked.Decisions[0].Source != res.Decisions[0].Source {
		t.Errorf("%v\n%v %v", checked, res, err)
	}
	if _, err := d.client.Reserve(t.Context(), &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{user("eve")}}); err != nil || f.Reserved != (limiter.ReserveRequest{}) {
		t.Errorf("by the estimate: %+v %v", f.Reserved, err)
	}
	d.Drain()
	if _, err := d.client.Settle(t.Context(), &sluicev1.SettleRequest{Reservation: apitest.ID}); status.Code(err) != codes.Unavailable {
		t.Errorf("a node that leaves: %v", err)
	}
}

func TestInvalidReserve(t *testing.T) {
	d := open(t, Config{Limiter: newLimiter(t, apitest.NewNode(t))})
	for _, c := range []struct {
		name, field, want string
		change            func(*sluicev1.ReserveRequest)
	}{
		{"no checks", "checks", "1 to 16", func(r *sluicev1.ReserveRequest) { r.Checks = nil }},
		{"too many", "checks", "17 checks; want 1 to 16", func(r *sluicev1.ReserveRequest) { r.Checks = users(17) }},
		{"cost", "checks[1].cost", "units", func(r *sluicev1.ReserveRequest) { r.Checks[1].Cost = new(int64(1)) }},
		{"verb", "checks[0].verb", "units", func(r *sluicev1.ReserveRequest) { r.Checks[0].Verb = sluicev1.Verb_VERB_CHARGE }},
		{"negative units", "units", "-1; want 1 or more", func(r *sluicev1.ReserveRequest) { r.Units = new(int64(-1)) }},
		{"least above units", "least", "6; want 1 to units", func(r *sluicev1.ReserveRequest) { r.Least = new(int64(6)) }},
		{"short ttl", "ttl", "999.999µs; want 1ms or more", func(r *sluicev1.ReserveRequest) { r.TtlNs = 999_999 }},
		{"negative ttl", "ttl", "want 1ms or more", func(r *sluicev1.ReserveRequest) { r.TtlNs = -1 }},
		{"negative wait", "wait", "-1ns; want 0 or more", func(r *sluicev1.ReserveRequest) { r.WaitNs = -1 }},
		{"wait for a hold", "wait", "0 with hold", func(r *sluicev1.ReserveRequest) {
			r.Checks, r.Units, r.Hold, r.TtlNs, r.WaitNs = users(1), nil, true, 1e9, 1
		}},
		{"nothing to wait for", "descriptor", "no limit with algorithm: concurrency", func(r *sluicev1.ReserveRequest) { r.WaitNs = 1 }},
		{"key", "idempotency_key", "128 bytes", func(r *sluicev1.ReserveRequest) { r.IdempotencyKey = "a key" }},
		{"timeout", "timeout_ns", "negative", func(r *sluicev1.ReserveRequest) { r.TimeoutNs = -1 }},
	} {
		r := &sluicev1.ReserveRequest{Checks: users(2), Units: new(int64(5))}
		c.change(r)
		_, err := d.client.Reserve(t.Context(), r)
		if code, field := fieldOf(err); code != codes.InvalidArgument || field != c.field || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, field %q", c.name, err, field)
		}
	}
	long := user("x")
	for range 100 {
		long.Descriptor_ = append(long.Descriptor_, long.Descriptor_[0])
		long.Limits = append(long.Limits, &sluicev1.Limit{Count: 1, PeriodNs: 1e9})
	}
	res, err := d.client.Reserve(t.Context(), &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{long, user("ann")}})
	if err != nil || res.Allowed || res.Decisions[0].GetError().GetField() != "checks[0].descriptor" || res.Decisions[1].Allowed {
		t.Errorf("%v %v", res, err)
	}
}

func TestLease(t *testing.T) {
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	d := open(t, Config{Limiter: f})
	call := func(units int64, ended string, actual int64, checks ...*sluicev1.Check) (*sluicev1.CheckResponse, error) {
		return d.client.Check(t.Context(), &sluicev1.CheckRequest{
			Checks: checks, Lease: &sluicev1.LeaseRequest{Units: units, TtlNs: int64(50 * time.Millisecond), Ended: ended, Actual: actual},
		})
	}
	for _, ended := range []string{"", apitest.ID} {
		res, err := call(2, ended, 3, user("after"+ended))
		want := limiter.ReserveRequest{Units: 2, TTL: 50 * time.Millisecond, Lease: true}
		if err != nil || res.GetLease().GetId() != apitest.ID || res.GetLease().GetUnits() != 2 || res.Lease.ExpiresAfterNs <= 0 || len(res.Decisions) != 1 || f.Reserved != want {
			t.Errorf("after %q: %v, %v, %+v", ended, res, err, f.Reserved)
		}
	}
	if res, err := call(0, apitest.ID, 3, user("bob")); err != nil || res.Lease != nil || res.Decisions[0].GetRemaining() != 3 {
		t.Errorf("given back alone: %v, %v", res, err)
	}
	d = open(t, Config{Limiter: newLimiter(t, apitest.NewNode(t))})
	for _, c := range []struct {
		field string
		err   func() error
	}{
		{"lease", func() error { _, err := call(1, "", 0, users(2)...); return err }},
		{"checks", func() error { _, err := call(1, "", 0); return err }},
		{"units", func() error { _, err := call(-1, "", 0, user("ann")); return err }},
		{"reservation", func() error { _, err := call(1, "é", 0, user("ann")); return err }},
	} {
		if code, field := fieldOf(c.err()); code != codes.InvalidArgument || field != c.field {
			t.Errorf("%v, field %q", c.err(), field)
		}
	}
}

func TestReservation(t *testing.T) {
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	d, ctx, id := open(t, Config{Limiter: f}), t.Context(), apitest.ID
	spent, err := d.client.Spend(ctx, &sluicev1.SpendRequest{Reservation: id, Units: 4})
	if err != nil || !spent.Allowed || spent.Left != 6 {
		t.Errorf("%v %v", spent, err)
	}
	if spent, err := d.client.Spend(ctx, &sluicev1.SpendRequest{Reservation: id, Units: 11}); err != nil || spent.Allowed || spent.Left != 10 {
		t.Errorf("%v %v", spent, err)
	}
	for _, c := range []struct{ more, ttl, units, expires, retry int64 }{
		{5, 0, 15, 60e9, -1}, {0, 90e9, 10, 90e9, -1}, {6, 0, 10, 60e9, 2.5e9}, {101, 0, 10, 60e9, -1},
	} {
		x, err := d.client.Extend(ctx, &sluicev1.ExtendRequest{Reservation: id, More: c.more, TtlNs: c.ttl})
		if err != nil || x.Allowed != (c.more <= 5) || x.Units != c.units || x.ExpiresAfterNs != c.expires || (x.RetryAfterNs == nil) != (c.retry < 0) || c.retry >= 0 && x.GetRetryAfterNs() != c.retry {
			t.Errorf("%+v: %v %v", c, x, err)
		}
	}
	if x, err := d.client.Settle(ctx, &sluicev1.SettleRequest{Reservation: id, Actual: 3}); err != nil || x.Charged != 3 || x.Returned != 7 || x.Late || x.Repeated {
		t.Errorf("%v %v", x, err)
	}
	held, err := d.client.Held(ctx, &sluicev1.HeldRequest{Domain: "shop", Descriptor_: user("ann").Descriptor_})
	if err != nil || held.Count != 2 || held.Units != 12 || len(held.Holdings) != 1 ||
		!proto.Equal(held.Holdings[0], &sluicev1.Holding{Id: "1f", Use: "reservation", Caller: "billing", Units: 10, SinceNs: 1.5e9, ExpiresAfterNs: 60e9}) {
		t.Errorf("%v %v", held, err)
	}
	for _, c := range []struct {
		name, field string
		code        codes.Code
		call        func() error
	}{
		{"unknown", "reservation", codes.InvalidArgument, func() error { _, err := d.client.Settle(ctx, &sluicev1.SettleRequest{Reservation: "x"}); return err }},
		{"settled", "", codes.NotFound, func() error {
			_, err := d.client.Settle(ctx, &sluicev1.SettleRequest{Reservation: apitest.GoneID})
			return err
		}},
		{"held of nothing", "descriptor", codes.InvalidArgument, func() error { _, err := d.client.Held(ctx, &sluicev1.HeldRequest{Domain: "shop"}); return err }},
	} {
		if code, field := fieldOf(c.call()); code != c.code || field != c.field {
			t.Errorf("%s: %v, field %q", c.name, code, field)
		}
	}
}

// TestReservationAccess: a caller uses the reservations whose domains it may check, and sees what is held where it may read.
func TestReservationAccess(t *testing.T) {
	token, err := access.NewToken(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := access.DigestOf(token)
	policy, err := access.Parse("callers.yaml", []byte(`
callers:
  - {name: ann, tokens: ['`+digest.String()+`'], grants: [{domains: [shop], verbs: [check]}]}
anonymous:
  - {domains: [shop], verbs: [check]}
  - {domains: [open], verbs: [read]}
`))
	if err != nil {
		t.Fatal(err)
	}
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	d := open(t, Config{Limiter: f, Guard: access.NewGuard(policy, slog.New(slog.DiscardHandler), time.Now)})
	ctx, other := t.Context(), user("x")
	other.Domain = "other"
	res, err := d.client.Reserve(ctx, &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{user("x"), other}})
	if err != nil || res.Allowed || res.Decisions[1].GetError().GetCode() != sluicev1.ErrorCode_ERROR_CODE_UNAUTHENTICATED {
		t.Errorf("%v %v", res, err)
	}
	_, want := d.client.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{other}})
	for _, c := range []struct {
		name string
		call func(id string) error
	}{
		{"reserve", func(id string) error {
			r := &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{other}}
			if id == apitest.ID {
				r.Checks[0] = user("y")
			}
			_, err := d.client.Reserve(ctx, r)
			return err
		}},
		{"spend", func(id string) error {
			_, err := d.client.Spend(ctx, &sluicev1.SpendRequest{Reservation: id, Units: 1})
			return err
		}},
		{"extend", func(id string) error {
			_, err := d.client.Extend(ctx, &sluicev1.ExtendRequest{Reservation: id})
			return err
		}},
		{"settle", func(id string) error {
			_, err := d.client.Settle(ctx, &sluicev1.SettleRequest{Reservation: id})
			return err
		}},
	} {
		if err := c.call(apitest.ID); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := c.call(apitest.OtherID); err == nil || err.Error() != want.Error() {
			t.Errorf("%s: %v, a check %v", c.name, err, want)
		}
	}
	named := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	_, reserve := d.client.Reserve(named, &sluicev1.ReserveRequest{Checks: users(1)})
	_, settle := d.client.Settle(named, &sluicev1.SettleRequest{Reservation: apitest.ID})
	if reserve != nil || settle != nil || f.Caller != "ann" {
		t.Errorf("%v %v, by %q", reserve, settle, f.Caller)
	}
	for domain, want := range map[string]codes.Code{"shop": codes.Unauthenticated, "open": codes.OK} {
		if _, err := d.client.Held(ctx, &sluicev1.HeldRequest{Domain: domain, Descriptor_: user("x").Descriptor_}); status.Code(err) != want {
			t.Errorf("held of %s: %v", domain, err)
		}
	}
}

// TestTrap13Settlements: an overloaded node takes settlements, which give units back.
func TestTrap13Settlements(t *testing.T) {
	d := open(t, Config{Limiter: &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}, Admit: func() bool { return false }})
	ctx, id := t.Context(), apitest.ID
	_, reserve := d.client.Reserve(ctx, &sluicev1.ReserveRequest{Checks: users(1)})
	_, spend := d.client.Spend(ctx, &sluicev1.SpendRequest{Reservation: id, Units: 1})
	_, extend := d.client.Extend(ctx, &sluicev1.ExtendRequest{Reservation: id})
	for _, err := range []error{reserve, spend, extend} {
		if status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	}
	if _, err := d.client.Settle(ctx, &sluicev1.SettleRequest{Reservation: id}); err != nil {
		t.Error(err)
	}
}
