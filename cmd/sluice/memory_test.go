package main

import (
	"strings"
	"testing"
)

func TestCounterBytes(t *testing.T) {
	for _, c := range []struct {
		most, limit string
		want        int64
		err         string
	}{
		{"0", "0", 0, ""},
		{"10MiB", "0", 10 << 20, ""},
		{"0", "256MiB", 112 << 20, ""},
		{"100MiB", "256MiB", 100 << 20, ""},
		{"200MiB", "256MiB", 112 << 20, ""},
		{"0", "64MiB", 16 << 20, ""},
		{"0", "63MiB", 0, "--memory-limit: 63 MiB is less than a node needs; want at least 64 MiB"},
		{"0", "much", 0, "--memory-limit: \"much\" is not a size"},
		{"much", "0", 0, "--max-memory: \"much\" is not a size"},
	} {
		s := defaultSettings()
		s.maxMemory, s.bounds.memoryLimit = c.most, c.limit
		got, err := s.counterBytes()
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("--max-memory %s --memory-limit %s: %d, %v; want %d, %q", c.most, c.limit, got, err, c.want, c.err)
		}
	}
}
