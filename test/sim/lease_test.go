package sim

import (
	"testing"
	"testing/synctest"
	"time"
)

// runLeases runs the schedule of one seed in a bubble.
func runLeases(t *testing.T, o LeaseOptions) (r LeaseResult) {
	synctest.Test(t, func(*testing.T) {
		o.sleep, o.start = time.Sleep, (*leaseSimCluster).startClients
		r = RunLeases(o)
	})
	return r
}

// TestLeaseSeeds: whatever becomes of messages, leaseholders and owners, every unit is spent where the limit alone would admit it, and
// grants add up.
func TestLeaseSeeds(t *testing.T) {
	var total LeaseResult
	for i := range uint64(*seeds) {
		s := *from + i
		r := runLeases(t, LeaseOptions{Seed: s})
		if r.Violation != nil {
			t.Fatalf("seed %d, %+v: %v", s, r.Limit, r.Violation)
		}
		total.Admitted += r.Admitted
		total.Leased += r.Leased
		total.Grants += r.Grants
		total.Granted += r.Granted
		total.Returned += r.Returned
		total.Handoffs += r.Handoffs
		total.Crashes += r.Crashes
		total.Late += r.Late
		total.Reservations += r.Reservations
		total.Extended += r.Extended
		total.ClientLeases += r.ClientLeases
	}
	t.Logf("%d admitted, %d of them from leases; %d reservations, %d times extended, %d leases of clients; %d grants of %d units, %d returned, %d came too late; %d handoffs, %d crashes",
		total.Admitted, total.Leased, total.Reservations, total.Extended, total.ClientLeases, total.Grants, total.Granted, total.Returned, total.Late, total.Handoffs, total.Crashes)
	if total.Leased < total.Admitted/10 || total.Returned == 0 || total.Late == 0 || total.Handoffs < *seeds || total.Crashes < *seeds || total.Reservations < 100**seeds || total.Extended < 10**seeds || total.ClientLeases < 20**seeds {
		t.Error("not much has happened")
	}
}

// TestLeaseGuards shows for each rule of leases that the simulator can remove what fails without it. TestLeaseGuardsRemoved does so for the rules
// of the product.
func TestLeaseGuards(t *testing.T) {
	for _, c := range []struct {
		name      string
		seed      uint64 // where the search begins: it violates the invariant
		options   LeaseOptions
		invariant string
	}{
		{"grants confirmed", 45, LeaseOptions{Unconfirmed: true}, "I2"},
		{"lifetime from the request", 9, LeaseOptions{FromAnswer: true}, "I2"},
		{"lifetime from the request, of clients", 11, LeaseOptions{FromAnswer: true, ClientsOnly: true}, "I2"},
		{"deadline kept", 4, LeaseOptions{Careless: true}, "I2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			shows(t, c.seed, func(seed uint64) *Violation {
				c.options.Seed = seed
				return runLeases(t, c.options).Violation
			}, func(seed uint64) *Violation { return runLeases(t, LeaseOptions{Seed: seed}).Violation }, c.invariant)
		})
	}
}
