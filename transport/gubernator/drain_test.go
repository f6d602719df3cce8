package gubernator

import "testing"

// TestDrainOverLimit: a denied check takes what is left.
func TestDrainOverLimit(t *testing.T) {
	const usual = "limit=10 duration=1m hits=1 behavior=DRAIN_OVER_LIMIT"
	for _, c := range []struct{ name, usual, lines string }{
		{"a window", usual, `
			0s  hits=0    : under left=10 reset=1m
			1s            : under left=9 reset=1m1s
			2s  hits=100  : over left=0 reset=1m1s
			3s  hits=0    : over left=0 reset=1m1s
			4s            : over left=0 reset=1m1s
			5s  hits=-2   : under left=2 reset=1m1s
			61s           : under left=9 reset=2m1s
		`},
		{"a window, at the first hit", usual, `
			0s  hits=11            : over left=0 reset=1m
			1s  behavior=BATCHING  : over left=0 reset=1m
		`},
		{"what fits is charged as ever", usual, `
			0s  hits=10  : under left=0 reset=1m
		`},
		{"only a check drains", usual, `
			0s  hits=9                   : under left=1 reset=1m
			0s  hits=2 behavior=BATCHING : over left=1 reset=1m
			0s  hits=-1                  : under left=2 reset=1m
		`},
		{"a window of the calendar", usual + " duration=0 behavior=DRAIN_OVER_LIMIT+DURATION_IS_GREGORIAN", `
			7s   hits=11  : over left=0 reset=1m
			60s           : under left=9 reset=2m
		`},
		{"a leaky bucket", usual + " algorithm=LEAKY_BUCKET duration=30s", `
			0s            : under left=9 reset=3s
			0s  hits=9 behavior=BATCHING : under left=0 reset=3s
			6s  hits=3    : over left=0 reset=15s
			9s            : under left=0 reset=12s
		`},
		{"with a reset", usual + " algorithm=LEAKY_BUCKET duration=30s", `
			0s  hits=10   : under left=0 reset=3s
			0s  hits=11 behavior=DRAIN_OVER_LIMIT+RESET_REMAINING : over left=0 reset=30s
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.usual, c.lines) })
	}
}

// TestResetRemaining: what was spent is forgotten. A window is not charged by the same request, a
// leaky bucket is, as there.
func TestResetRemaining(t *testing.T) {
	const usual = "limit=10 duration=1m hits=1"
	for _, c := range []struct{ name, usual, lines string }{
		{"a window", usual, `
			0s  hits=10                           : under left=0 reset=1m
			1s                                    : over left=0 reset=1m
			2s  behavior=RESET_REMAINING          : under left=10 reset=0
			3s  hits=0                            : under left=10 reset=1m3s
			4s                                    : under left=9 reset=1m4s
			5s  behavior=RESET_REMAINING hits=0   : under left=10 reset=0
			6s  behavior=RESET_REMAINING hits=-1  : under left=10 reset=0
			7s  behavior=RESET_REMAINING hits=99 limit=20 : under left=20 reset=0
			8s                                    : under left=9 reset=1m8s
		`},
		{"what is not there yet", usual + " behavior=RESET_REMAINING", `
			0s           : under left=10 reset=0
			0s  limit=0  : under left=0 reset=0
		`},
		{"a window of the calendar", usual + " duration=0 behavior=DURATION_IS_GREGORIAN", `
			7s   hits=11                                              : over left=10 reset=1m
			8s   hits=10                                              : under left=0 reset=1m
			9s   hits=10 behavior=RESET_REMAINING+DURATION_IS_GREGORIAN : under left=10 reset=0
			10s                                                       : under left=9 reset=1m
		`},
		{"a leaky bucket", usual + " algorithm=LEAKY_BUCKET duration=30s burst=5", `
			0s  hits=5                            : under left=0 reset=3s
			1s                                    : over left=0 reset=3s
			2s  behavior=RESET_REMAINING          : under left=4 reset=5s
			2s  behavior=RESET_REMAINING hits=6   : over left=5 reset=2s
			2s  hits=5                            : under left=0 reset=5s
			3s  behavior=RESET_REMAINING hits=0   : under left=5 reset=3s
			3s  hits=2                            : under left=3 reset=6s
			4s  behavior=RESET_REMAINING hits=-3  : under left=5 reset=4s
			4s  hits=5                            : under left=0 reset=7s
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.usual, c.lines) })
	}
}
