package bucket_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// A story is a list of lines "time [verb] [cost] want [note]": at what time of
// one day (m:ss, or h:mm:ss with an optional fraction, or 2d+h:mm:ss) which cost
// is asked, and the answer wanted. verb is check unless given; drain is a check that drains, and
// now one that cannot wait. want is allowed,
// soft, denied or charged, with optional conditions behind it:
//
//	left=N    units remaining
//	retry=D   retry after
//	reset=D   reset after
//	delay=D   delay
//	by=N      limit N of the list decides
//
// A cost ×N repeats the line N times.
type story string

// day is the midnight, a Monday's, that the stories' times count from. It is a
// multiple of every period in them.
var day = time.Date(2025, 3, 10, 0, 0, 0, 0, time.UTC).UnixNano()

// tell plays the story on one key of a fresh table, and on the exact account as
// far as that knows what happens, so that the models are held to the examples too.
func tell(t *testing.T, s story, list ...bucket.Limit) {
	t.Helper()
	limits := mustLimits(t, list...)
	table, exact := smallTable(t), newAccount(limits)
	for line := range strings.Lines(string(s)) {
		if strings.TrimSpace(line) != "" {
			exact = tellLine(t, table, exact, limits, line)
		}
	}
}

var verbs = map[string]bucket.Verb{
	"check": bucket.Check, "read": bucket.Read, "charge": bucket.Charge, "refund": bucket.Refund, "reset": bucket.Reset,
	"drain": bucket.Check, "now": bucket.Check,
}

// tellLine plays one line and returns the account, nil once it cannot follow.
func tellLine(t *testing.T, table *bucket.Table, exact *account, limits *bucket.Limits, line string) *account {
	t.Helper()
	fields := strings.Fields(line)
	r := &bucket.Request{Key: bucket.Key{Hi: 7, Lo: 7}, Limits: limits, Cost: 1}
	now, times := clock(t, fields[0]), 1
	fields = fields[1:]
	if v, ok := verbs[fields[0]]; ok {
		r.Drain, r.NoDelay = fields[0] == "drain", fields[0] == "now"
		r.Verb, fields = v, fields[1:]
	}
	if n, err := fmt.Sscanf(fields[0], "×%d", &times); n == 1 && err == nil {
		fields = fields[1:]
	} else if n, err := fmt.Sscanf(fields[0], "%d", &r.Cost); n == 1 && err == nil {
		fields = fields[1:]
	}
	for range times {
		d := table.Do(now, r)
		wellFormed(t, limits, r.Verb, d)
		if exact = exact.follows(now, r); exact != nil {
			exact.compare(t, exact.do(now, r), d)
		}
		for _, want := range fields {
			if !slices.Contains(describe(d), want) {
				t.Errorf("%s: not %s: %+v", strings.TrimSpace(line), want, d)
			}
		}
	}
	return exact
}

// describe lists all that d has of what a story may want.
func describe(d bucket.Decision) []string {
	words := []string{"denied"}
	switch {
	case d.Soft:
		words[0] = "soft"
	case d.Allowed:
		words = []string{"allowed", "charged", "refunded", "forgotten"}
	}
	retry := d.RetryAfter.String()
	if d.RetryAfter == bucket.Never {
		retry = "never"
	}
	return append(words, fmt.Sprint("left=", d.Remaining), fmt.Sprint("by=", d.Index), "retry="+retry, "reset="+d.ResetAfter.String(), "delay="+d.Delay.String())
}

// clock reads a story's time.
func clock(t *testing.T, s string) int64 {
	t.Helper()
	var days int64
	if before, after, ok := strings.Cut(s, "d+"); ok {
		if _, err := fmt.Sscanf(before, "%d", &days); err != nil {
			t.Fatalf("time %q: %v", s, err)
		}
		s = after
	}
	parts := strings.Split(s, ":")
	for len(parts) < 3 {
		parts = append([]string{"0"}, parts...)
	}
	d, err := time.ParseDuration(parts[0] + "h" + parts[1] + "m" + parts[2] + "s")
	if err != nil {
		t.Fatalf("time %q: %v", s, err)
	}
	return day + days*int64(24*time.Hour) + int64(d)
}

func per(algorithm bucket.Algorithm, count int64, period time.Duration) bucket.Limit {
	return bucket.Limit{Algorithm: algorithm, Count: count, Period: period}
}

// with returns l, changed.
func with(l bucket.Limit, change func(*bucket.Limit)) bucket.Limit {
	change(&l)
	return l
}

// left reads what remains on r's key.
func left(table *bucket.Table, now int64, r *bucket.Request) int64 {
	read := *r
	read.Verb = bucket.Read
	return table.Do(now, &read).Remaining
}
