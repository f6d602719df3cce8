package sim

import (
	"testing"

	"github.com/sluice-project/sluice/bucket"
)

// TestLeaseSeeds: whatever becomes of messages, borrowers and holders, every unit is spent where the limit alone would admit it, and
// grants add up.
func TestLeaseSeeds(t *testing.T) {
	var total LeaseResult
	for i := range uint64(*seeds) {
		s := *from + i
		r := RunLeases(LeaseOptions{Seed: s})
		if r.Violation != nil {
			t.Fatalf("seed %d, %+v: %v", s, r.Limit, r.Violation)
		}
		total.Admitted += r.Admitted
		total.Leased += r.Leased
		total.Grants += r.Grants
		total.Granted += r.Granted
		total.Returned += r.Returned
		total.HandOffs += r.HandOffs
		total.Crashes += r.Crashes
		total.Late += r.Late
	}
	t.Logf("%d admitted, %d of them from leases; %d grants of %d units, %d returned, %d came too late; %d hand-offs, %d crashes",
		total.Admitted, total.Leased, total.Grants, total.Granted, total.Returned, total.Late, total.HandOffs, total.Crashes)
	if total.Leased < total.Admitted/10 || total.Returned == 0 || total.Late == 0 || total.HandOffs < *seeds || total.Crashes < *seeds {
		t.Error("not much has happened")
	}
}

// TestLeaseGuards shows for each guard of leases what goes wrong without it.
func TestLeaseGuards(t *testing.T) {
	for _, c := range []struct {
		name      string
		options   LeaseOptions
		invariant string
	}{
		{"burst shrink", LeaseOptions{Without: bucket.BurstShrink}, "I2"},
		{"late date", LeaseOptions{Without: bucket.LateDate}, "I2"},
		{"boundary clip", LeaseOptions{Without: bucket.BoundaryClip}, "I2"},
		{"settled once", LeaseOptions{Without: bucket.SettleOnce}, "I4"},
		{"grants confirmed", LeaseOptions{Unconfirmed: true}, "I2"},
		{"lifetime from the request", LeaseOptions{FromAnswer: true}, "I2"},
		{"deadline kept", LeaseOptions{Careless: true}, "I2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for s := range uint64(400) {
				c.options.Seed = s
				r := RunLeases(c.options)
				if r.Violation == nil || r.Violation.Invariant != c.invariant {
					continue
				}
				if with := RunLeases(LeaseOptions{Seed: s}); with.Violation != nil {
					t.Fatalf("seed %d violates an invariant with the guard too: %v", s, with.Violation)
				}
				t.Logf("seed %d, %s: %v", s, r.Limit.Algorithm, r.Violation)
				return
			}
			t.Error("400 seeds do not miss it")
		})
	}
}
