package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/dustin/go-humanize"
)

const (
	// leastMemory is the smallest --memory-limit: an empty node has about half of it.
	leastMemory = 64 << 20
	// besideCounters is what a node needs besides counters and garbage.
	besideCounters = 32 << 20
)

// memoryLimit reads --memory-limit, 0 for none.
func (s *settings) memoryLimit() (int64, error) {
	n, err := parseBytes(s.bounds.memoryLimit)
	if err == nil && n != 0 && n < leastMemory {
		err = fmt.Errorf("%s is less than a node needs; want at least %s", humanize.IBytes(uint64(n)), humanize.IBytes(leastMemory))
	}
	return n, err
}

// counterBytes is the cap of the counters' accounted memory, 0 for none: --max-memory, and by --memory-limit half of
// what is left beside the rest. The other half is what accounts leave out, and garbage until it is collected.
func (s *settings) counterBytes() (int64, error) {
	most, err := parseBytes(s.maxMemory)
	if err != nil {
		return 0, fmt.Errorf("--max-memory: %w", err)
	}
	limit, err := s.memoryLimit()
	if err != nil {
		return 0, fmt.Errorf("--memory-limit: %w", err)
	}
	if limit == 0 {
		return most, nil
	}
	half := (limit - besideCounters) / 2
	if most == 0 || most > half {
		return half, nil
	}
	return most, nil
}

// limitMemory has the collector keep the process within --memory-limit. GOMEMLIMIT in the environment wins.
func (s *settings) limitMemory() {
	if limit, err := s.memoryLimit(); err == nil && limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}
