package sluicetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/limiter/local/sluicetest"
)

// TestInABubble: an hour passes at once.
func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := sluicetest.New(t, rules)
		for i, want := range []string{"open", "open", "closed"} {
			if got := login(limiter, "ann"); got != want {
				t.Fatalf("login %d: %s, want %s", i, got, want)
			}
		}
		time.Sleep(time.Hour)
		if got := login(limiter, "ann"); got != "open" {
			t.Errorf("an hour later: %s", got)
		}
	})
}

// TestDenyAWaiter: one that waits goes on after undo.
func TestDenyAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := sluicetest.New(t, rules)
		undo := limiter.Deny("shop", "user", "ann")
		time.AfterFunc(90*time.Minute, undo)
		began := time.Now()
		if err := limiter.Key("shop", "user", "ann").Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*time.Hour || took > 3*time.Hour {
			t.Errorf("it waited %v, want two periods", took)
		}
	})
}

// TestDenyIsExact: other domains, descriptors and verbs are not denied, and a denial spends nothing.
func TestDenyIsExact(t *testing.T) {
	limiter := sluicetest.New(t, rules)
	ann := limiter.Key("shop", "user", "ann")
	undo := limiter.Deny("shop", "user", "ann")
	again := limiter.Deny("shop", "user", "ann")
	for _, k := range []limit.Key{
		limiter.Key("shop", "user", "ann", "path", "/"), limiter.Key("shop", "user", "bob"), limiter.Key("shop", "users", "ann"), limiter.Key("shops", "user", "ann"),
	} {
		if ok, err := k.Allow(t.Context()); !ok || err != nil {
			t.Errorf("%v was denied: %v", k, err)
		}
	}
	if d, err := ann.Read(t.Context(), 1); d.Allowed || d.Verdict != limit.VerdictDenied || d.Remaining != 0 || err != nil {
		t.Errorf("a read: %+v %v", d, err)
	}
	for _, f := range []func(context.Context, int64) (limit.Decision, error){ann.Charge, ann.Refund} {
		if d, err := f(t.Context(), 1); !d.Allowed || err != nil {
			t.Errorf("a charge, or its refund: %+v %v", d, err)
		}
	}
	if d, err := limiter.Key("other", "a", "b").Check(t.Context(), 1); !d.Allowed || err != nil {
		t.Errorf("%+v %v", d, err)
	}
	limiter.Deny("other")
	if d, err := limiter.Key("other", "a", "b").Check(t.Context(), 1); d.Allowed || d.RetryAfter != time.Second || err != nil {
		t.Errorf("without a rule: %+v %v", d, err)
	}
	undo()
	undo()
	if login(limiter, "ann") != "closed" {
		t.Error("undo ended another Deny")
	}
	again()
	for range 2 {
		if login(limiter, "ann") != "open" {
			t.Error("denials have spent")
		}
	}
}

// TestDenyInABatch: the others spend nothing, those with a denial of their own keep it, and a batch that is invalid stays so.
func TestDenyInABatch(t *testing.T) {
	limiter := sluicetest.New(t, rules)
	defer limiter.Deny("shop", "user", "ann")()
	ann, bob, eve := limiter.Key("shop", "user", "ann").Spend(1), limiter.Key("shop", "user", "bob").Spend(2), limiter.Key("shop", "user", "eve").Spend(3)
	b, err := limiter.CheckAll(t.Context(), bob, ann, eve)
	if err != nil || b.Allowed || fmt.Sprint(b.Denied()) != "[1 2]" || b.Decisions[2].Verdict != limit.VerdictNever {
		t.Errorf("%+v %v", b, err)
	}
	if d, err := limiter.Check(t.Context(), bob); !d.Allowed || err != nil {
		t.Errorf("the batch has spent: %+v %v", d, err)
	}
	charge := bob
	charge.Verb = limit.VerbCharge
	if _, err := limiter.CheckAll(t.Context(), ann, charge); !errors.Is(err, limit.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "checks[1].verb") {
		t.Errorf("a charge in a batch: %v", err)
	}
}

// TestFail: every call fails, and spends nothing.
func TestFail(t *testing.T) {
	limiter := sluicetest.New(t, rules)
	limiter.Fail(limit.ErrUnavailable)
	ann := limiter.Key("shop", "user", "ann")
	_, one := ann.Charge(t.Context(), 2)
	_, all := limiter.CheckAll(t.Context(), ann.Spend(1))
	list, each := limiter.CheckEach(t.Context(), ann.Spend(1), ann.Spend(1))
	for i, err := range []error{one, all, each, ann.Reset(t.Context()), ann.Wait(t.Context())} {
		if !errors.Is(err, limit.ErrUnavailable) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if len(list) != 2 {
		t.Errorf("%d decisions, want 2", len(list))
	}
	if n := len(limiter.Calls()); n != 6 {
		t.Errorf("%d calls, want 6", n)
	}
	limiter.Fail(nil)
	if d, err := ann.Read(t.Context(), 1); d.Remaining != 2 || err != nil {
		t.Errorf("it has spent: %+v %v", d, err)
	}
}

// TestCallsAreCopies: neither the program nor the test changes what is remembered.
func TestCallsAreCopies(t *testing.T) {
	limiter := sluicetest.New(t, rules)
	c := limiter.Key("shop", "user", "ann").WithLimits(limit.PerHour(1)).Spend(1)
	if _, err := limiter.Check(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Descriptor[0].Value, c.Limits[0].Count = "bob", 9
	limiter.Calls()[0].Amount = 5
	if got := limiter.Calls()[0]; got.Descriptor[0].Value != "ann" || got.Limits[0].Count != 1 || got.Amount != 1 {
		t.Errorf("%+v", got)
	}
}

func TestConcurrent(t *testing.T) {
	limiter := sluicetest.New(t, rules)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 100 {
				undo := limiter.Deny("shop", "user", "ann")
				login(limiter, "ann")
				undo()
				limiter.Fail(nil)
				limiter.Calls()
			}
		})
	}
	group.Wait()
	if n := len(limiter.Calls()); n != 400 {
		t.Errorf("%d calls, want 400", n)
	}
}

// failing is a test that notes its end.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) {
	f.text = fmt.Sprint(args...)
	panic(f)
}

func TestBadRulesFailTheTest(t *testing.T) {
	f := &failing{}
	defer func() {
		if recover() != f || !strings.Contains(f.text, "rules.yaml:1: ") {
			t.Errorf("the test ended with %q", f.text)
		}
	}()
	sluicetest.New(f, "domain: []")
}
