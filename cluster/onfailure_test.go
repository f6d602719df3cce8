package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/rules"
)

// TestOnFailure: what each policy answers for each verb when the owner is away.
func TestOnFailure(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  rules.OnFailure
		verb    bucket.Verb
		allowed bool
		source  check.Source
		retry   time.Duration
		failed  bool
	}{
		{"share, check", rules.FailShare, bucket.Check, true, check.Share, 0, false},
		{"share, read", rules.FailShare, bucket.Read, true, check.Share, 0, false},
		{"closed, check", rules.FailClosed, bucket.Check, false, check.Closed, closedRetry, false},
		{"closed, read", rules.FailClosed, bucket.Read, false, check.Closed, closedRetry, false},
		{"open, check", rules.FailOpen, bucket.Check, true, check.Open, 0, false},
		{"open, read", rules.FailOpen, bucket.Read, true, check.Open, 0, false},
		{"open, charge", rules.FailOpen, bucket.Charge, false, 0, 0, true},
		{"share, refund", rules.FailShare, bucket.Refund, false, 0, 0, true},
		{"open, reset", rules.FailOpen, bucket.Reset, false, 0, 0, true},
	} {
		posedAs(t, c.name, "a b", func(t *testing.T, w *testCluster) {
			w.decides(always(unsent))
			r := request(w.nodes["a"], "b", 1, hourly(10))
			r.OnFailure, r.Verb = c.policy, c.verb
			a := decide(t.Context(), w.nodes["a"], r)[0]
			if c.failed {
				wantErr(t, c.name, a, check.ErrNoOwner)
				wantErr(t, c.name, a, check.ErrUnsent) // why there was none
				return
			}
			wantAnswer(t, c.name, a, c.allowed, c.source, "a")
			if a.RetryAfter != c.retry {
				t.Errorf("retry after %v, want %v", a.RetryAfter, c.retry)
			}
		})
	}
}

// TestShare: the share is the limit divided by the members of the view, rounded
// down, and is spent apart from the counter it stands for.
func TestShare(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		a, b := w.nodes["a"], w.nodes["b"]
		r := request(a, "b", 1, hourly(11))
		w.decides(always(unsent))
		for i := range 3 {
			answer := decide(t.Context(), a, r)[0]
			wantAnswer(t, "of the share", answer, true, check.Share, "a")
			if answer.Limit != 3 || answer.Remaining != int64(2-i) {
				t.Errorf("%+v; want %d left of 3", answer, 2-i)
			}
		}
		wantAnswer(t, "after the share", decide(t.Context(), a, r)[0], false, check.Share, "a")
		wantSpent(t, "at the owner", b, r, 0)
		wantSpent(t, "of the share, as a's own", a, r, 0)
		w.decides(nil)
		if answer := decide(t.Context(), a, r)[0]; answer.Source != check.Forwarded || answer.Remaining != 10 {
			t.Errorf("with the owner back: %+v", answer)
		}
	})
}

// TestNobodyServes: where no member serves there is nobody to wait for.
func TestNobodyServes(t *testing.T) {
	posed(t, "a", func(t *testing.T, w *testCluster) {
		fresh := w.add("fresh", nil)
		r := request(w.nodes["a"], "a", 1, hourly(10))
		start := time.Now()
		joining := viewOf(1, "fresh", "b")
		for i := range joining.Members {
			joining.Members[i].State = member.Joining
		}
		pose(fresh, joining)
		if answer := decide(t.Context(), fresh, r)[0]; answer.Limit != 5 {
			t.Errorf("two members, none serving: %+v, want half of the limit", answer)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// TestInvalid: an owner that does not understand the limits is not asked again.
func TestInvalid(t *testing.T) {
	posed(t, "b", func(t *testing.T, w *testCluster) {
		a := w.add("a", func(c *Config) { c.Peers = newer{wire{w, "a"}} })
		w.agree(2)
		r := request(a, "b", 1, hourly(10))
		r.OnFailure = rules.FailClosed
		wantAnswer(t, "of an older owner", decide(t.Context(), a, r)[0], false, check.Closed, "a")
		if n := len(w.callsSoFar()); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

// newer is the way from a node that is one minor ahead: its limits do not arrive.
type newer struct{ wire }

func (n newer) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	for i := range records {
		records[i].Limits = nil
	}
	return n.wire.Call(ctx, addr, records, replies)
}
