package gubernator

import "testing"

// TestLeakyBucket: burst tokens, which come back all the time.
func TestLeakyBucket(t *testing.T) {
	const usual = "algorithm=LEAKY_BUCKET limit=10 duration=30s hits=1"
	for _, c := range []struct{ name, usual, lines string }{
		{"one token each three seconds", usual, `
			0s             : under left=9 reset=3s
			1s             : under left=8 reset=3s
			2s             : under left=7 reset=3s
			3.5s  hits=0   : under left=8 reset=6s
			6.5s  hits=0   : under left=9 reset=9s
			6.5s  hits=9   : under left=0 reset=9s
			6.5s           : over left=0 reset=9s
			6.5s  hits=3   : over left=0 reset=15s
			6.5s  hits=0   : over left=0 reset=9s
			9.5s  hits=0   : under left=1 reset=12s
			60s   hits=0   : under left=10 reset=1m
		`},
		{"what is not a whole token is kept", usual, `
			0s   hits=10  : under left=0 reset=3s
			2.9s          : over left=0 reset=3s
			3s            : under left=0 reset=6s
			5.9s          : over left=0 reset=6s
			6s            : under left=0 reset=9s
		`},
		{"a burst above the limit", usual + " burst=20", `
			0s             : under left=19 reset=3s
			0s   hits=19   : under left=0 reset=3s
			30s  hits=0    : under left=10 reset=33s
			30s  hits=11   : over left=10 reset=33s
			60s  hits=20   : under left=0 reset=1m3s
			60s  hits=21   : over left=0 reset=2m
		`},
		{"a burst below the limit", usual + " burst=2", `
			0s   hits=3    : over left=2 reset=0s
			0s   hits=2    : under left=0 reset=3s
			9s   hits=2    : under left=0 reset=12s
		`},
		{"negative hits give back", usual, `
			0s             : under left=9 reset=3s
			0s   hits=-1   : under left=10 reset=0s
			0s   hits=10   : under left=0 reset=3s
			0s   hits=-1   : under left=1 reset=3s
			0s   hits=-99  : under left=10 reset=0s
			0s   hits=11   : over left=10 reset=0s
		`},
		{"limit, duration and burst change", usual, `
			0s   hits=8                : under left=2 reset=3s
			0s   burst=20 hits=2       : under left=10 reset=3s
			0s   limit=20 hits=0       : under left=10 reset=1.5s
			0s   duration=60s hits=0   : over left=0 reset=6s
			0s   limit=30 duration=30s : under left=19 reset=1s
		`},
		{"a changed algorithm starts anew", usual, `
			0s   hits=10                      : under left=0 reset=3s
			1s   algorithm=TOKEN_BUCKET       : under left=9 reset=31s
			1s                                : over left=0 reset=3s
		`},
		{"limit 0 admits nothing", usual + " limit=0", `
			0s             : over left=0 reset=0s
			1s   burst=5   : over left=0 reset=1s
			2s   hits=0    : over left=0 reset=2s
		`},
		{"nor does a burst below 0", usual + " burst=-1", `
			0s             : over left=0 reset=0s
		`},
		{"no duration", usual + " duration=0", `
			0s     hits=10 : under left=0 reset=1ms
			0.001s hits=10 : under left=0 reset=2ms
		`},
		{"numbers at their ends", usual + " limit=9223372036854775807 duration=9223372036854775807", `
			0s     hits=9223372036854775807 : under left=0 reset=1ms
			0s     hits=9223372036854775807 : over left=0 reset=876600h
		`},
		{"slow", usual + " limit=1 burst=2 duration=9223372036854775807", `
			0s     hits=2                   : under left=0 reset=876600h
			0s     hits=2                   : over left=0 reset=1753200h
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.usual, c.lines) })
	}
}

// TestLeakyGregorian: the limit comes back over the length of the unit that the check falls into, from the last hit on.
func TestLeakyGregorian(t *testing.T) {
	const usual = "algorithm=LEAKY_BUCKET hits=1 behavior=DURATION_IS_GREGORIAN"
	for _, c := range []struct{ name, usual, lines string }{
		{"minute", usual + " limit=60 duration=0", `
			0s           : under left=59 reset=1s
			0.5s         : under left=58 reset=1s
			1.7s         : under left=58 reset=2s
		`},
		{"hour", usual + " limit=60 duration=1", "0s : under left=59 reset=1m"},
		{"day", usual + " limit=24 duration=2", "0s : under left=23 reset=1h"},
		{"week", usual + " limit=7 duration=3", "0s : under left=6 reset=24h"},
		{"month of 30 days, then of 31", usual + " limit=1 duration=4", `
			0s           : under left=0 reset=720h
			720h         : under left=0 reset=1464h
		`},
		{"year, 365 days and then 366", usual + " limit=1 duration=5", `
			0s           : under left=0 reset=8760h
			1128h hits=0 : over left=0 reset=8784h
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.usual, c.lines) })
	}
}
