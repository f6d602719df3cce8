//go:build race

package envoy

// raceEnabled: the race detector makes sync.Pool forget, so allocations say nothing.
const raceEnabled = true
