package linear

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
)

func check(sent, answered int64, decision string) audit.Check {
	return audit.Check{Key: "k", First: sent, Sent: sent, Answered: answered, Decision: decision, Source: "owned"}
}

func allow(sent, answered int64) audit.Check { return check(sent, answered, "allowed") }
func deny(sent, answered int64) audit.Check  { return check(sent, answered, "denied") }

// lost has no answer after some attempts.
func lost(sent int64, attempts int) audit.Check {
	return audit.Check{Key: "k", First: sent, Sent: sent, Answered: sent + 1, Decision: "error", Ambiguous: attempts}
}

func share(c audit.Check) audit.Check { c.Source = "share"; return c }

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		checks []audit.Check
		want   bool
	}{
		{"nothing", nil, true},
		{"two, then no more", []audit.Check{allow(1, 2), allow(3, 4), deny(5, 6), deny(7, 8)}, true},
		{"three", []audit.Check{allow(1, 2), allow(3, 4), allow(5, 6)}, false},
		{"denied too early", []audit.Check{allow(1, 2), deny(3, 4), allow(5, 6)}, false},
		{"denied while another is admitted", []audit.Check{allow(1, 2), deny(3, 6), allow(4, 5)}, true},
		{"admitted after a denial was answered", []audit.Check{allow(1, 9), deny(2, 3), allow(4, 5)}, false},
		{"denied without reason", []audit.Check{allow(1, 2), deny(3, 4)}, false},
		{"denied because of one without an answer", []audit.Check{allow(1, 2), lost(2, 1), deny(3, 4)}, true},
		{"one without an answer is charged once", []audit.Check{lost(1, 1), deny(3, 4)}, false},
		{"two attempts are charged twice", []audit.Check{lost(1, 2), deny(3, 4)}, true},
		{"one without an answer may never be charged", []audit.Check{lost(1, 1), allow(3, 4), allow(5, 6), deny(7, 8)}, true},
		{"or very late", []audit.Check{lost(1, 1), allow(30, 40), deny(50, 60)}, true},
		{"shares count apart", []audit.Check{allow(1, 2), allow(3, 4), share(allow(5, 6)), deny(7, 8)}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Check(c.checks, 2, time.Minute)
			if err != nil || got != c.want {
				t.Errorf("linearizable: %t, %v; want %t", got, err, c.want)
			}
		})
	}
}

func TestCheckWantsOneKey(t *testing.T) {
	other := allow(1, 2)
	other.Key = "l"
	if _, err := Check([]audit.Check{allow(1, 2), other}, 2, time.Minute); err == nil || !strings.Contains(err.Error(), `"l"`) {
		t.Errorf("error %v", err)
	}
}
