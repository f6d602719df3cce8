package limiter

import "testing"

// TestClientLease: a lease has an eighth of what is left, ends before its window, is settled once, and counts as spent some time after its
// deadline. It is no reservation of the rule's.
func TestClientLease(t *testing.T) {
	s := newBudgets(t)
	s.play(`
		reserve x 1000 ttl=100ms lease user=ann => 12 for 100ms
		user=ann read => allowed 88/100
		settle x 5 => 5 charged, 7 returned
		user=ann read => allowed 95/100
		settle x 5 => not_found reservation
		reserve x 3 ttl=100ms lease user=ann => 3 for 100ms
		reserve y 4 ttl=100ms lease user=ann => 4 for 100ms
		after 150ms =>
		settle x 1 => 1 charged, 2 returned
		after 50ms =>
		user=ann read => allowed 90/100
		reserve x 9 ttl=100ms lease bare=1 => 1 for 100ms
		# 50 ms before the end of the window
		after 59m59.75s =>
		reserve x 9 ttl=100ms lease user=bob => 9 for 25ms
		reserve x 9 ttl=100ms lease watched=1 => 1 for 25ms
		reserve x 1 lease user=ann team=red => invalid lease
		reserve x 1 lease key=k user=ann => invalid lease
		reserve x lease user=ann => invalid units
		reserve x 1 lease brief=1 => invalid descriptor
		reserve x 1 lease queue=1 => invalid descriptor
	`)
	if s := s.Stats().Reservations; s != (ReservationStats{}) {
		t.Errorf("leases count as reservations: %+v", s)
	}
}

// TestHold: while a key is held nothing is admitted, however much is left, and afterwards all that was left before. Two instances may
// hold it, for no longer than the rule's max_ttl.
func TestHold(t *testing.T) {
	s := newBudgets(t)
	s.play(`
		user=ann => allowed 99/100
		reserve x hold ttl=30s user=ann => 100 for 30s
		after 10s =>
		user=ann => denied 0/100, in 20s
		reserve other hold ttl=40s user=ann => 100 for 40s
		after 20s =>
		user=ann => denied 0/100, in 20s
		settle other 0 => 0 charged, 100 returned
		user=ann => allowed 98/100
		reserve x hold ttl=24h user=ann => 100 for 1m
		after 1m =>
		user=ann => allowed 97/100
		reserve x 1 hold ttl=1s user=ann => invalid hold
		reserve x hold ttl=1s user=ann team=red => invalid hold
		reserve x 1 hold ttl=1s lease user=ann => invalid hold
		reserve x hold user=ann => invalid ttl
		reserve x hold ttl=25h user=ann => invalid ttl
	`)
	if s := s.Stats().Reservations; s != (ReservationStats{}) {
		t.Errorf("holds count as reservations: %+v", s)
	}
}
