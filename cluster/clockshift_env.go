//go:build clockshift

package cluster

import (
	"os"
	"time"
)

// shifted returns the reading (Unix ns) of a wall clock that is ahead by SLUICE_CLOCK_SHIFT, a duration.
func shifted(wall int64) int64 {
	text := os.Getenv("SLUICE_CLOCK_SHIFT")
	if text == "" {
		return wall
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic("cluster: SLUICE_CLOCK_SHIFT: " + err.Error())
	}
	return wall + int64(d)
}
