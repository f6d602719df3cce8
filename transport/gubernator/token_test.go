package gubernator

import "testing"

// TestTokenBucket is gubernator's window: from the first hit, whole again at its end.
func TestTokenBucket(t *testing.T) {
	const usual = "algorithm=TOKEN_BUCKET limit=10 duration=1m hits=1"
	for _, c := range []struct{ name, usual, lines string }{
		{"a window from the first hit", usual, `
			7s    hits=4  : under left=6 reset=1m7s
			30s   hits=0  : under left=6 reset=1m7s
			40s   hits=6  : under left=0 reset=1m7s
			50s           : over left=0 reset=1m7s
			51s   hits=0  : over left=0 reset=1m7s
			66.9s         : over left=0 reset=1m7s
			67s   hits=0  : under left=10 reset=2m7s
			80s           : under left=9 reset=2m20s
		`},
		{"milliseconds are rounded up", usual, `
			1.0001s        : under left=9 reset=1m1.001s
			1.0009s        : under left=8 reset=1m1.001s
			61.0001s       : under left=9 reset=2m1.001s
		`},
		{"more than is left charges nothing", usual, `
			0s  hits=7 : under left=3 reset=1m
			1s  hits=4 : over left=3 reset=1m
			2s  hits=3 : under left=0 reset=1m
			3s  hits=1 : over left=0 reset=1m
		`},
		{"a first hit above the limit", usual, `
			0s  hits=11 : over left=10 reset=1m
			1s  hits=10 : under left=0 reset=1m1s
		`},
		{"reading charges nothing and opens no window", usual, `
			0s  hits=0  : under left=10 reset=1m
			5s  hits=0  : under left=10 reset=1m5s
			6s          : under left=9 reset=1m6s
		`},
		{"negative hits give back", usual, `
			0s  hits=10 : under left=0 reset=1m
			1s          : over left=0 reset=1m
			2s  hits=-3 : under left=3 reset=1m
			3s  hits=3  : under left=0 reset=1m
			4s  hits=-1 : under left=1 reset=1m
			5s  hits=-99 : under left=10 reset=1m5s
			6s  hits=11 : over left=10 reset=1m6s
			7s  hits=-9223372036854775808 : under left=10 reset=1m7s
			8s          : under left=9 reset=1m8s
		`},
		{"a first negative hit mints nothing", usual, `
			0s  hits=-5 : under left=10 reset=1m
			1s  hits=11 : over left=10 reset=1m1s
		`},
		{"a changed limit", usual, `
			0s  hits=3           : under left=7 reset=1m
			1s  limit=20 hits=1  : under left=16 reset=1m
			2s  limit=20 hits=0  : under left=16 reset=1m
			3s  limit=5 hits=0   : under left=1 reset=1m
			4s  limit=5 hits=2   : over left=1 reset=1m
			5s  limit=3 hits=1   : over left=0 reset=1m
			6s  limit=3 hits=0   : over left=0 reset=1m
			7s  limit=6 hits=2   : under left=0 reset=1m
			8s                   : under left=3 reset=1m
			60s limit=6          : under left=5 reset=2m
		`},
		{"a changed duration moves the end", usual, `
			0s   hits=4             : under left=6 reset=1m
			10s  duration=30s       : under left=5 reset=30s
			20s  duration=2m        : under left=4 reset=2m
			21s  duration=2m hits=0 : under left=4 reset=2m
			119s duration=2m        : under left=3 reset=2m
			120s duration=2m        : under left=9 reset=4m
		`},
		{"a changed duration that has passed renews", usual, `
			0s   duration=1h hits=10  : under left=0 reset=1h
			30m  duration=1h          : over left=0 reset=1h
			31m  duration=30m hits=0  : under left=10 reset=1h1m
			32m  duration=30m         : under left=9 reset=1h2m
		`},
		{"limit and duration at once", usual, `
			0s   hits=4                   : under left=6 reset=1m
			10s  limit=5 duration=1h      : under left=0 reset=1h
			11s  limit=5 duration=1h      : over left=0 reset=1h
		`},
		{"a changed algorithm starts anew", usual, `
			0s   hits=10                                     : under left=0 reset=1m
			1s   algorithm=LEAKY_BUCKET duration=10s hits=4  : under left=6 reset=2s
			1s                                               : over left=0 reset=1m
		`},
		{"behaviors without effect", usual, `
			0s  behavior=NO_BATCHING                      : under left=9 reset=1m
			0s  behavior=GLOBAL                           : under left=8 reset=1m
			0s  behavior=MULTI_REGION                     : under left=7 reset=1m
			0s  behavior=GLOBAL+NO_BATCHING+MULTI_REGION hits=8 : over left=7 reset=1m
		`},
		{"burst is for the other algorithm", usual + " burst=3", `
			0s  hits=4 : under left=6 reset=1m
		`},
		{"limit 0 admits nothing", usual + " limit=0", `
			0s          : over left=0 reset=1m
			1s  hits=0  : over left=0 reset=1m1s
			2s  hits=-1 : over left=0 reset=1m2s
		`},
		{"nor does less", usual + " limit=-5", `
			0s  : over left=0 reset=1m
		`},
		{"no duration", usual + " limit=2 duration=0", `
			0s             : under left=1 reset=1ms
			0.0005s hits=2 : over left=1 reset=1ms
			0.001s  hits=2 : under left=0 reset=2ms
			0.002s  hits=3 duration=-9223372036854775808 : over left=2 reset=3ms
		`},
		{"the longest duration", usual + " duration=9223372036854775807", `
			0s       hits=10 : under left=0 reset=876600h
			1000000h         : under left=9 reset=1876600h
		`},
		{"numbers at their ends", usual + " limit=9223372036854775807", `
			0s  hits=9223372036854775807 : under left=0 reset=1m
			1s                           : over left=0 reset=1m
			2s  limit=1 hits=-9223372036854775808 : under left=1 reset=1m2s
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.usual, c.lines) })
	}
}

// TestGregorian: windows of the calendar, in UTC. The story begins at the midnight of a Wednesday,
// 15 November.
func TestGregorian(t *testing.T) {
	const usual = "algorithm=TOKEN_BUCKET limit=10 hits=1 behavior=DURATION_IS_GREGORIAN"
	for _, c := range []struct{ name, usual, lines string }{
		{"minute", usual + " duration=0", `
			7s    hits=4 : under left=6 reset=1m
			59.9s hits=7 : over left=6 reset=1m
			60s   hits=0 : under left=10 reset=2m
			61.5s        : under left=9 reset=2m
		`},
		{"hour", usual + " duration=1", `
			7s    : under left=9 reset=1h
			59m   : under left=8 reset=1h
			60m   : under left=9 reset=2h
		`},
		{"day", usual + " duration=2", `
			7s    : under left=9 reset=24h
			25h   : under left=9 reset=48h
		`},
		{"week", usual + " duration=3", `
			7s     hits=0 : under left=10 reset=120h
			119h          : under left=9 reset=120h
			120h          : under left=9 reset=288h
		`},
		{"month", usual + " duration=4", `
			7s     hits=0 : under left=10 reset=384h
			383h          : under left=9 reset=384h
			384h          : under left=9 reset=1128h
		`},
		{"year", usual + " duration=5", `
			7s     hits=0 : under left=10 reset=1128h
			1127h         : under left=9 reset=1128h
			1128h         : under left=9 reset=9912h
		`},
		{"from and to a duration of milliseconds", usual + " duration=0", `
			10s   hits=4                          : under left=6 reset=1m
			11s   behavior=BATCHING duration=30s  : under left=5 reset=40s
			12s                                   : under left=4 reset=1m
		`},
		{"a changed unit", usual + " duration=0", `
			10s   hits=4      : under left=6 reset=1m
			11s   duration=1  : under left=5 reset=1h
		`},
		{"limit 0", usual + " duration=2 limit=0", `
			10s   : over left=0 reset=24h
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.usual, c.lines) })
	}
}
