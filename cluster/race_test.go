//go:build race

package cluster

// raceEnabled: pools drop some of what they are given, so allocations say nothing.
const raceEnabled = true
