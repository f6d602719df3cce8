package bucket

// The leaky bucket comes in two forms, which Turner's article of 1986 and ITU-T
// Recommendation I.371 keep apart:
//
//   - As a meter (LeakyBucket) it has a level that leaks at a constant rate, and
//     refuses what would make it overflow. This is the token bucket upside down, see
//     token.go; its equal in terms of theoretical arrival times is the generic cell rate
//     algorithm (GCRA) of I.371.
//   - As a queue (LeakyQueue) it shapes: what is admitted comes out at the constant
//     rate. Nothing is stored here; a check is told how long to wait.

// delay returns how long (ns) a check that is admitted now must wait: until all that was
// admitted before it has drained. Only a queue delays.
func (s *state) delay(p *plan, now int64) int64 {
	if !p.queue {
		return 0
	}
	return s.until(p, now, 0)
}
