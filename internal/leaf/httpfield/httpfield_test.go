package httpfield

import (
	"math"
	"testing"
	"time"
)

func TestItems(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for _, c := range []struct {
		name         string
		count, burst int64
		period       time.Duration
		want         string
	}{
		{"window", 100, 0, time.Minute, `"window";q=100;w=60`},
		{"bucket", 10, 100, time.Second, `"bucket";q=100;w=10`},
		{"rounded up", 10, 3, 15 * time.Second, `"rounded up";q=3;w=5`},
		{"quick", 5, 0, 100 * time.Millisecond, `"quick";q=5`},
		{"no period", 5, 0, 0, `"no period";q=5`},
		{"blocked", 0, 100, time.Second, `"blocked";q=0;w=1`},
		{"huge", math.MaxInt64, 0, time.Second, `"huge";q=999999999999999;w=1`},
		{"slow", 1, math.MaxInt64, century, `"slow";q=999999999999999;w=9223372037`},
		{`say "hi" \ bye`, 1, 0, time.Second, `"say \"hi\" \\ bye";q=1;w=1`},
		{"naïve\n", 1, 0, time.Second, `"na%C3%AFve%0A";q=1;w=1`},
	} {
		if got := string(AppendPolicy(nil, c.name, c.count, c.burst, c.period)); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
	for at, want := range map[int64]string{-1: `"a";r=7`, 0: `"a";r=7;t=0`, math.MaxInt64: `"a";r=7;t=999999999999999`} {
		if got := string(AppendRemaining(nil, "a", 7, at)); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
