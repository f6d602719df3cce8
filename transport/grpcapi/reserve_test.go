package grpcapi

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
)

func TestReserve(t *testing.T) {
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	d := open(t, Config{Limiter: f})
	d.play(t, `
		Reserve (ann) (bob) units: 2 least: 1 ttl_ns: 120000000000 idempotency_key: "k" timeout_ns: 60000000000 wait_ns: 1000000000 => ALLOWED 1/3 | ALLOWED 1/3 reservation:"r-1" units:2 expires_after_ns:120000000000 allowed:true
	`)
	if want := (limiter.ReserveRequest{Units: 2, Least: 1, TTL: 2 * time.Minute, Wait: time.Second}); f.Reserved != want || f.Key != "k" {
		t.Errorf("%+v, key %q", f.Reserved, f.Key)
	}
	d.play(t, `
		Reserve (ann) (new) units: 2 => DENIED 1/3 in 1m0s | DENIED_BY_OTHERS 3/3 in 1m0s retry_after_ns:60000000000
		Reserve (eve) => ALLOWED 2/3 reservation:"r-1" units:1 expires_after_ns:60000000000 allowed:true
	`)
	if f.Reserved != (limiter.ReserveRequest{}) {
		t.Errorf("by the estimate: %+v", f.Reserved)
	}
	d.Drain()
	d.play(t, `Settle reservation: "r-1" => Unavailable this node is leaving; ask another`)
}

func TestInvalidReserve(t *testing.T) {
	d := openNode(t)
	d.play(t, `
		Reserve units: 5 => InvalidArgument checks: 0 checks; want 1 to 16
		Reserve `+strings.Repeat("(x) ", 17)+`units: 5 => InvalidArgument checks: 17 checks; want 1 to 16
		Reserve (x) (y cost: 1) units: 5 => InvalidArgument checks[1].cost: is set; units says how many to reserve of each check
		Reserve (x verb: VERB_CHARGE) (y) units: 5 => InvalidArgument checks[0].verb: is set; units says how many to reserve of each check
		Reserve (x) units: -1 => InvalidArgument units: -1; want 1 or more, or leave it out for the rule's estimate
		Reserve (x) units: 5 least: 6 => InvalidArgument least: 6; want 1 to units, or leave it out for units
		Reserve (x) units: 5 ttl_ns: 999999 => InvalidArgument ttl: 999.999µs; want 1ms or more, or leave it out
		Reserve (x) units: 5 ttl_ns: -1 => InvalidArgument ttl: -1ns; want 1ms or more, or leave it out
		Reserve (x) units: 5 wait_ns: -1 => InvalidArgument wait: -1ns; want 0 or more, and 0 with hold
		Reserve (x) hold: true ttl_ns: 1000000000 wait_ns: 1 => InvalidArgument wait: 1ns; want 0 or more, and 0 with hold
		Reserve (x) (y) units: 5 wait_ns: 1 => InvalidArgument descriptor: the rule has no limit with algorithm: concurrency
		Reserve (x) units: 5 idempotency_key: "a key" => InvalidArgument idempotency_key: want at most 128 bytes of visible ASCII
		Reserve (x) units: 5 timeout_ns: -1 => InvalidArgument timeout_ns: negative; want the time that the node may take, or 0 for no bound
		Reserve (x `+strings.Repeat("descriptor {key: \"k\"} limits {count: 1 period_ns: 1} ", 100)+`) (ann) units: 2 => INVALID checks[0].descriptor | DENIED_BY_OTHERS 3/3
	`)
}

func TestLease(t *testing.T) {
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	d := open(t, Config{Limiter: f})
	d.play(t, `
		Check (x) lease {units: 2 ttl_ns: 50000000} => ALLOWED 1/3 allowed:true lease:{id:"r-1" units:2 expires_after_ns:60000000000}
		Check (y) lease {units: 2 ttl_ns: 50000000 ended: "r-1" actual: 3} => ALLOWED 1/3 allowed:true lease:{id:"r-1" units:2 expires_after_ns:60000000000}
	`)
	if want := (limiter.ReserveRequest{Units: 2, TTL: 50 * time.Millisecond, Lease: true}); f.Reserved != want {
		t.Errorf("%+v", f.Reserved)
	}
	d.play(t, `Check (z) lease {ended: "r-1" actual: 3} => ALLOWED 3/3 allowed:true`) // given back alone
	openNode(t).play(t, `
		Check (x) (y) lease {units: 1} => InvalidArgument lease: is set; want one check and no idempotency key beside it
		Check lease {units: 1} => InvalidArgument checks: empty; want 1 to 10,000 checks
		Check (x) lease {units: -1} => InvalidArgument units: -1; want 1 or more, or leave it out for the rule's estimate
		Check (x) lease {units: 1 ended: "é"} => InvalidArgument reservation: no node of this cluster has made it, or not with this secret; give the reservation of a response
	`)
}

func TestReservation(t *testing.T) {
	open(t, Config{Limiter: &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}}).play(t, `
		Spend reservation: "r-1" units: 4 => allowed:true left:6
		Spend reservation: "r-1" units: 11 => left:10
		Extend reservation: "r-1" more: 5 => allowed:true units:15 expires_after_ns:60000000000
		Extend reservation: "r-1" ttl_ns: 90000000000 => allowed:true units:10 expires_after_ns:90000000000
		Extend reservation: "r-1" more: 6 => units:10 expires_after_ns:60000000000 retry_after_ns:2500000000
		Extend reservation: "r-1" more: 101 => units:10 expires_after_ns:60000000000
		Settle reservation: "r-1" actual: 3 => charged:3 returned:7
		Held domain: "shop" descriptor {key: "user" value: "ann"} => holdings:{id:"1f" use:"reservation" units:10 since_ns:1500000000 expires_after_ns:60000000000 caller:"billing"} count:2 units:12
		Settle reservation: "x" => InvalidArgument reservation: no such ID
		Settle reservation: "r-3" => NotFound settled
		Held domain: "shop" => InvalidArgument descriptor: empty; want at least one entry
	`)
}

// TestReservationAccess: a caller uses the reservations whose domains it may check, and sees what is held where it may read.
func TestReservationAccess(t *testing.T) {
	guard, token := apitest.Guard(t, `
callers:
  - {name: ann, tokens: [TOKEN], grants: [{domains: [shop], verbs: [check]}]}
anonymous:
  - {domains: [shop], verbs: [check]}
  - {domains: [open], verbs: [read]}
`)
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	d := open(t, Config{Limiter: f, Guard: guard})
	d.play(t, `
		Reserve (x) checks {domain: "other" descriptor {key: "user"}} => DENIED_BY_OTHERS 3/3 | UNAUTHENTICATED
		Reserve checks {domain: "other" descriptor {key: "user"}} => Unauthenticated unauthenticated callers may not check in the domain "other"; send a token or a certificate that this node knows
		Check checks {domain: "other" descriptor {key: "user"}} => Unauthenticated unauthenticated callers may not check in the domain "other"; send a token or a certificate that this node knows
		Reserve (y) => ALLOWED 2/3 reservation:"r-1" units:1 expires_after_ns:60000000000 allowed:true
		Spend reservation: "r-1" units: 1 => allowed:true left:9
		Spend reservation: "r-2" units: 1 => Unauthenticated unauthenticated callers may not check in the domain "other"; send a token or a certificate that this node knows
		Extend reservation: "r-1" => allowed:true units:10 expires_after_ns:60000000000
		Extend reservation: "r-2" => Unauthenticated unauthenticated callers may not check in the domain "other"; send a token or a certificate that this node knows
		Settle reservation: "r-1" => returned:10
		Settle reservation: "r-2" => Unauthenticated unauthenticated callers may not check in the domain "other"; send a token or a certificate that this node knows
		Held domain: "shop" descriptor {key: "user"} => Unauthenticated unauthenticated callers may not read in the domain "shop"; send a token or a certificate that this node knows
		Held domain: "open" descriptor {key: "user"} => holdings:{id:"1f" use:"reservation" units:10 since_ns:1500000000 expires_after_ns:60000000000 caller:"billing"} count:2 units:12
	`)
	d.playAs(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), t, `
		Reserve (z) => ALLOWED 2/3 reservation:"r-1" units:1 expires_after_ns:60000000000 allowed:true
		Settle reservation: "r-1" => returned:10
	`)
	if f.Caller != "ann" {
		t.Errorf("by %q", f.Caller)
	}
}

// TestTrap13Settlements: an overloaded node takes settlements, which give units back.
func TestTrap13Settlements(t *testing.T) {
	open(t, Config{Limiter: &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}, Admit: func() bool { return false }}).play(t, `
		Reserve (x) => Unavailable this node has too much to do; nothing was charged, ask another node or try again later
		Spend reservation: "r-1" units: 1 => Unavailable this node has too much to do; nothing was charged, ask another node or try again later
		Extend reservation: "r-1" => Unavailable this node has too much to do; nothing was charged, ask another node or try again later
		Settle reservation: "r-1" => returned:10
	`)
}
