//go:build !race

// Package race tells tests whether the race detector is on: it allocates, and makes pools forget.
package race

// Enabled is whether it is.
const Enabled = false
