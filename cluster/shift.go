//go:build !clockshift

package cluster

// shifted returns the reading (Unix ns) of the wall clock as it is. Tests build with the tag clockshift, under which it is wrong.
func shifted(wall int64) int64 { return wall }
