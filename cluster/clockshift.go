//go:build !clockshift

package cluster

// shifted returns wall, a reading of the wall clock (Unix ns). Under the build tag clockshift tests make the clock wrong.
func shifted(wall int64) int64 { return wall }
