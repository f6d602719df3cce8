package rules_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/rules"
)

func TestParseDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "2w": 336 * time.Hour,
		"1w1d1h": 193 * time.Hour, "1.5d": 36 * time.Hour, "250ms": 250 * time.Millisecond, "1us": time.Microsecond,
		"1µs": time.Microsecond, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := rules.ParseDuration(s); err != nil || got != want {
			t.Errorf("%q: got %s, %v; want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"", "5", "d", "-1s", "+1s", "1y", "1 s", "s1", "1s 1s", ".", ".d", "1..2d", "106752d", "106751d24h", "15251w", "9999999999999999999999d", "1D", "\xff"} {
		if got, err := rules.ParseDuration(s); err == nil {
			t.Errorf("%q is read as %s", s, got)
		}
	}
}
