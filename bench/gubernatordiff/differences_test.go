package gubernatordiff

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
)

// TestDifferences has the differences that are meant, by the rows of docs/internals/gubernator.md. Each line is a
// time, a request, gubernator's answer and sluice's; one answer is of both. A reset time is since the
// story's beginning, the midnight of a Monday. A story whose answers are all alike is a fault: then the difference has gone.
func TestDifferences(t *testing.T) {
	const (
		window = "limit=10 duration=60s hits=1"
		leaky  = "algorithm=LEAKY_BUCKET limit=10 duration=10s hits=1"
	)
	p := newPair(t)
	for _, c := range []struct{ name, usual, lines string }{
		// The first story's Monday is of November, which has 30 days.
		{"units of the calendar: a month of a leaky bucket", leaky + " behavior=DURATION_IS_GREGORIAN duration=4 limit=30", `
			0s  hits=30  : under left=0 reset=0s        | under left=0 reset=24h
			24h hits=0   : under left=0 reset=absurd    | under left=1 reset=48h
		`},
		{"status where nothing is to be spent: nothing is left", window, `
			0s  hits=10  : under left=0 reset=1m
			1s  hits=0   : under left=0 reset=1m    | over left=0 reset=1m
		`},
		{"status where nothing is to be spent: something is left again", window, `
			0s  hits=10  : under left=0 reset=1m
			1s           : over left=0 reset=1m
			2s  hits=-2  : over left=2 reset=1m     | under left=2 reset=1m
			3s           : over left=1 reset=1m     | under left=1 reset=1m
			4s  hits=0   : over left=1 reset=1m     | under left=1 reset=1m
		`},
		{"status where nothing is to be spent: a leaky bucket", leaky, `
			0s  hits=10  : under left=0 reset=10s   | under left=0 reset=1s
			0s  hits=0   : under left=0 reset=10s   | over left=0 reset=1s
		`},
		{"a window begins with what is charged: not with a read", window, `
			0s  hits=0   : under left=10 reset=1m
			5s           : under left=9 reset=1m    | under left=9 reset=1m5s
		`},
		{"a window begins with what is charged: not with a denial", window, `
			0s  hits=11  : over left=10 reset=1m
			5s           : under left=9 reset=1m    | under left=9 reset=1m5s
		`},
		{"a window begins with what is charged: and ends when all is given back", window, `
			0s           : under left=9 reset=1m
			5s  hits=-1  : under left=10 reset=1m   | under left=10 reset=1m5s
			6s           : under left=9 reset=1m    | under left=9 reset=1m6s
		`},
		{"a window is over at its reset time", window, `
			0s  hits=10  : under left=0 reset=1m
			60s          : over left=0 reset=1m     | under left=9 reset=2m
		`},
		{"no more than the limit is left: at once", window, `
			0s  hits=-5  : under left=15 reset=1m   | under left=10 reset=1m
			0s  hits=15  : under left=0 reset=1m    | over left=10 reset=1m
		`},
		{"no more than the limit is left: later", window, `
			0s           : under left=9 reset=1m
			0s  hits=-3  : under left=12 reset=1m   | under left=10 reset=1m
		`},
		{"no more than the limit is left: a leaky bucket", leaky, `
			0s  hits=-5  : under left=15 reset=-5s  | under left=10 reset=0s
		`},
		{"a read changes nothing", window, `
			0s  hits=4               : under left=6 reset=1m
			1s  hits=0 duration=120s : under left=6 reset=2m
			61s duration=120s        : under left=5 reset=2m  | under left=9 reset=3m1s
		`},
		{"a denied check makes no window longer", window, `
			0s  hits=10              : under left=0 reset=1m
			1s  duration=120s        : over left=0 reset=2m
			61s duration=120s        : over left=0 reset=2m   | under left=9 reset=3m1s
		`},
		{"former limits bound a changed one: a window that is renewed", window, `
			0s  duration=120s        : under left=9 reset=2m
			1s  hits=4               : under left=5 reset=1m
			31s                      : under left=4 reset=1m
			31s duration=30s         : under left=9 reset=1m1s | under left=3 reset=1m1s
		`},
		{"former limits bound a changed one: a higher limit", window, `
			0s  hits=8                 : under left=2 reset=1m
			31s duration=30s hits=6    : under left=4 reset=1m1s
			32s duration=40s limit=20  : under left=13 reset=1m11s | under left=9 reset=1m11s
		`},
		{"a smaller limit forgets nothing", window, `
			0s  hits=8               : under left=2 reset=1m
			1s  limit=5              : over left=0 reset=1m
			2s  hits=0               : over left=5 reset=1m   | under left=2 reset=1m
		`},
		{"a renewed window is whole", window, `
			0s  hits=10              : under left=0 reset=1m
			30s duration=20s hits=4  : over left=0 reset=50s  | under left=6 reset=50s
		`},
		{"a limit that comes back takes up what it had: duration", window, `
			0s  hits=4 duration=30s  : under left=6 reset=30s
			10s duration=120s        : under left=5 reset=2m
			40s duration=120s        : under left=4 reset=2m
			50s duration=30s         : under left=9 reset=1m20s | under left=8 reset=1m10s
		`},
		{"a limit that comes back takes up what it had: algorithm", window, `
			0s  hits=10                                 : under left=0 reset=1m
			1s  algorithm=LEAKY_BUCKET duration=10s     : under left=9 reset=2s
			2s                                          : under left=9 reset=1m2s  | over left=0 reset=1m
		`},
		{"a limit that comes back takes up what it had: a leaky bucket's rate", leaky, `
			0s  hits=10                                 : under left=0 reset=10s   | under left=0 reset=1s
			0s  limit=100 burst=10                      : over left=0 reset=10s    | over left=0 reset=100ms
			1s  limit=100 burst=10 hits=10              : under left=0 reset=11s   | under left=0 reset=1.1s
			1s                                          : over left=0 reset=11s    | over left=0 reset=2s
			1s  limit=100 burst=10 hits=0               : under left=0 reset=11s   | over left=0 reset=1.1s
			1.5s limit=100 burst=10 hits=2              : under left=3 reset=11.2s | under left=3 reset=1.6s
			1.5s                                        : under left=2 reset=9.5s  | over left=0 reset=2.5s
		`},
		{"units of the calendar end with the next one's first millisecond", window + " behavior=DURATION_IS_GREGORIAN duration=0", `
			5s           : under left=9 reset=59.999s | under left=9 reset=1m
		`},
		{"units of the calendar: weeks", window + " behavior=DURATION_IS_GREGORIAN duration=3", "5s : error | under left=9 reset=168h"},
		{"units of the calendar: to a duration", window + " behavior=DURATION_IS_GREGORIAN duration=0", `
			5s  hits=4                           : under left=6 reset=59.999s | under left=6 reset=1m
			7s                                   : under left=5 reset=59.999s | under left=5 reset=1m
			10s behavior=BATCHING duration=30s   : under left=4 reset=35s     | under left=4 reset=37s
		`},
		{"units of the calendar: a leaky bucket is not filled when one ends", leaky + " behavior=DURATION_IS_GREGORIAN duration=0 limit=60", `
			30s  hits=60 : under left=0 reset=30s       | under left=0 reset=31s
			61s  hits=0  : under left=60 reset=1m1s     | under left=31 reset=1m2s
		`},
		{"reset remaining charges nothing: not even a window that is not there", window + " behavior=RESET_REMAINING", `
			0s           : under left=9 reset=1m        | under left=10 reset=0
		`},
		{"drain over limit: at the first hit", window + " behavior=DRAIN_OVER_LIMIT", `
			0s  hits=11  : over left=10 reset=1m        | over left=0 reset=1m
		`},
		{"a denied check costs nothing: a leaky bucket's first", leaky, `
			0s  hits=11  : over left=0 reset=10s        | over left=10 reset=0s
			0s           : over left=0 reset=10s        | under left=9 reset=1s
		`},
		{"the reset time of a leaky bucket", leaky, `
			0s  hits=4   : under left=6 reset=4s        | under left=6 reset=1s
			0s  hits=8   : over left=6 reset=4s         | over left=6 reset=2s
		`},
		{"leaky buckets: another burst does not fill one", leaky, `
			0s  hits=8           : under left=2 reset=8s   | under left=2 reset=1s
			0s  hits=0 burst=9   : under left=9 reset=1s   | under left=1 reset=1s
		`},
		{"leaky buckets: nor does a duration without hits", leaky + " burst=100", `
			0s    hits=100   : under left=0 reset=10s      | under left=0 reset=1s
			10.1s hits=0     : under left=100 reset=-1m19.9s | under left=10 reset=11s
		`},
		{"leaky buckets: parts of tokens are kept", leaky, `
			0s    hits=10  : under left=0 reset=10s        | under left=0 reset=1s
			1.9s           : under left=0 reset=11.9s      | under left=0 reset=2s
			2s             : over left=0 reset=12s         | under left=0 reset=3s
		`},
		{"leaky buckets: time in which one was full gives nothing", leaky, `
			0s    hits=0   : under left=10 reset=0s
			0.9s           : under left=9 reset=1.9s
			1s    hits=0   : under left=10 reset=1s        | under left=9 reset=1.9s
		`},
		{"leaky buckets: another rate begins with the last charge", leaky, `
			0s    hits=10                      : under left=0 reset=10s  | under left=0 reset=1s
			2s    hits=11                      : over left=2 reset=10s
			2s    hits=3 limit=100 burst=10    : over left=2 reset=11.8s | under left=7 reset=2.1s
		`},
		{"leaky buckets: a smaller limit neither fills one nor locks it", leaky + " duration=1h limit=1000", `
			0s    hits=1000        : under left=0 reset=1h      | under left=0 reset=3.6s
			0s    limit=10         : under left=9 reset=6m      | over left=0 reset=6m
			359s  limit=10         : under left=8 reset=17m59s  | over left=0 reset=6m
			360s  limit=10         : under left=8 reset=18m     | under left=0 reset=12m
			360s  hits=0           : under left=1000 reset=6m   | under left=99 reset=6m3.6s
		`},
		{"limits that admit nothing: below 0", window + " limit=-5", `
			0s           : over left=-5 reset=1m        | over left=0 reset=1m
			1s  hits=0   : under left=-5 reset=1m       | over left=0 reset=1m1s
		`},
		{"durations that are over at once", window + " duration=0", `
			0s           : under left=9 reset=0s        | under left=9 reset=1ms
		`},
		{"what has no meaning is rejected: behavior", window + " behavior=BATCHING+unknown", "0s : under left=9 reset=1m | error"},
		{"created_at is ignored", window, `
			10s created_at=0s : under left=9 reset=1m   | under left=9 reset=1m10s
		`},
	} {
		t.Run(c.name, func(t *testing.T) { p.tell(t, c.usual, c.lines) })
	}
}

// tell plays a story on a new key, from the next Monday on.
func (p *pair) tell(t *testing.T, usual, lines string) {
	t.Helper()
	const (
		day    = 24 * 60 * 60 * 1000
		monday = 4 * day // 5 January 1970
	)
	began, key, differs := p.ms-(p.ms-monday)%(7*day)+7*day, p.key(), false
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		line = strings.TrimSpace(line)
		question, want, _ := strings.Cut(line, ":")
		at, question, _ := strings.Cut(strings.TrimSpace(question), " ")
		p.ms = began + duration(t, at).Milliseconds()
		q := requestOf(t, began, usual+" "+question)
		q.Name, q.UniqueKey = "differences", key
		theirs, ours := p.ask(t, q)
		a, b := spell(began, theirs), spell(began, ours)
		differs = differs || a != b
		wantTheirs, wantOurs, two := strings.Cut(want, "|")
		if !two {
			wantOurs = wantTheirs
		}
		if strings.TrimSpace(wantTheirs) != a || strings.TrimSpace(wantOurs) != b {
			t.Errorf("%s\n\tanswered: %s | %s", line, a, b)
		}
	}
	if !differs {
		t.Error("there is no difference any more")
	}
}

// requestOf reads name=value pairs; later ones win.
func requestOf(t *testing.T, began int64, text string) *gubernatorv1.RateLimitReq {
	t.Helper()
	q := new(gubernatorv1.RateLimitReq)
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		number, err := strconv.ParseInt(value, 10, 64)
		switch name {
		case "hits":
			q.Hits = number
		case "limit":
			q.Limit = number
		case "burst":
			q.Burst = number
		case "duration": // a unit of the calendar, unless it has one of its own
			if q.Duration = number; err != nil {
				q.Duration, err = duration(t, value).Milliseconds(), nil
			}
		case "created_at":
			q.CreatedAt, err = new(began+duration(t, value).Milliseconds()), nil
		case "algorithm":
			q.Algorithm, err = gubernatorv1.Algorithm(gubernatorv1.Algorithm_value[value]), nil
		case "behavior":
			q.Behavior, err = 0, nil
			for _, bit := range strings.Split(value, "+") {
				if b, ok := gubernatorv1.Behavior_value[bit]; ok {
					q.Behavior |= gubernatorv1.Behavior(b)
				} else {
					q.Behavior |= 64
				}
			}
		default:
			err = fmt.Errorf("no field %s", name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// spell is what a story says of an answer.
func spell(began int64, r *gubernatorv1.RateLimitResp) string {
	if r.GetError() != "" {
		return "error"
	}
	reset := "0"
	const century = 100 * 366 * 24 * 60 * 60 * 1000
	switch since := r.GetResetTime() - began; {
	case r.GetResetTime() == 0:
	case since < -century || since > century:
		reset = "absurd"
	default:
		reset = (time.Duration(r.GetResetTime()-began) * time.Millisecond).String()
		if strings.HasSuffix(reset, "m0s") {
			reset = strings.TrimSuffix(reset, "0s")
		}
		if strings.HasSuffix(reset, "h0m") {
			reset = strings.TrimSuffix(reset, "0m")
		}
	}
	status, _, _ := strings.Cut(strings.ToLower(r.GetStatus().String()), "_")
	return fmt.Sprintf("%s left=%d reset=%s", status, r.GetRemaining(), reset)
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
