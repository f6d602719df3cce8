package eventual

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

const ms = int64(time.Millisecond)

var testKey = bucket.Key{Hi: 1, Lo: 2}

func windowOf(count int64, period time.Duration) *bucket.Limits {
	l, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: count, Period: period})
	if err != nil {
		panic(err)
	}
	return l
}

// story is a Book of one key and what is told to it, at times in ms.
type story struct {
	t      *testing.T
	book   *Book
	limits *bucket.Limits
}

// check asks for cost at ms and wants allowed, or the owner to be asked.
func (s *story) check(at, cost int64, want string) bucket.Decision {
	s.t.Helper()
	d, _, ok := s.book.Decide(at*ms, &bucket.Request{Key: testKey, Limits: s.limits, Cost: cost})
	got := "owner"
	if ok {
		got = map[bool]string{true: "yes", false: "no"}[d.Allowed]
	}
	if got != want {
		s.t.Errorf("at %d ms, cost %d: %s, want %s (%+v)", at, cost, got, want, d)
	}
	return d
}

// report returns the line that is sent at ms.
func (s *story) report(at int64) (lines []message.Line) {
	s.book.Report(at*ms, func(l message.Line) { lines = append(lines, l) })
	return lines
}

// learn tells the answer to l, which was sent at sent ms, at ms.
func (s *story) learn(at, sent int64, l message.Line, ends, known, remaining int64, reporters int) {
	s.book.Learn(at*ms, sent*ms, (sent+at)/2*ms, &message.Standing{
		Key: l.Key, Ends: ends * ms, Known: known, Remaining: remaining, Reporters: reporters,
	})
}

func newStory(t *testing.T, count int64) *story {
	return &story{t, NewBook(2), windowOf(count, 10*time.Second)}
}

// TestFirst: before the first answer the owner decides, and afterwards a share of what is left.
func TestFirst(t *testing.T) {
	s := newStory(t, 100)
	s.check(0, 1, "owner")
	lines := s.report(10)
	if len(lines) != 1 || lines[0].Sum != 0 || lines[0].Ends != 0 {
		t.Fatalf("reported %+v", lines)
	}
	s.check(15, 1, "owner")
	s.learn(20, 10, lines[0], 10_000, 0, 41, 2)
	if d := s.check(25, 21, "yes"); d.Remaining != 20 || d.Limit != 100 || d.ResetAfter != 9975*time.Millisecond {
		t.Errorf("%+v", d)
	}
	d := s.check(30, 1, "no")
	if d.RetryAfter != Period || d.Remaining != 0 {
		t.Errorf("denied as %+v", d)
	}
	if d := s.check(30, 101, "no"); d.RetryAfter != bucket.Never {
		t.Errorf("never: %+v", d)
	}
	s.check(30, 30, "owner") // more than any share, and not more than may be left
	line := s.report(60)[0]
	if line.Sum != 21 || line.Ends != 10_000*ms {
		t.Fatalf("reported %+v", line)
	}
	s.learn(70, 60, line, 10_000, 21, 0, 2)
	if d := s.check(75, 1, "no"); d.RetryAfter != 9925*time.Millisecond {
		t.Errorf("denied as %+v", d)
	}
}

// TestOldAnswers: an answer that comes late or twice gives nothing back.
func TestOldAnswers(t *testing.T) {
	s := newStory(t, 100)
	s.check(0, 1, "owner")
	first := s.report(10)[0]
	s.learn(20, 10, first, 10_000, 0, 100, 1)
	s.check(20, 60, "yes")
	second := s.report(60)[0]
	s.learn(70, 60, second, 10_000, 60, 0, 1)
	s.learn(80, 10, first, 10_000, 0, 100, 1)
	s.learn(80, 60, second, 10_000, 60, 40, 1)
	s.check(90, 1, "no")
}

// TestNextWindow: with fresh knowledge a window begins with a share of the whole, and old sums are not told in it.
func TestNextWindow(t *testing.T) {
	s := newStory(t, 100)
	s.check(9700, 1, "owner")
	s.learn(9820, 9800, s.report(9800)[0], 10_000, 0, 7, 3)
	s.check(9830, 3, "yes")
	old := s.report(9950)[0]
	s.learn(9970, 9950, old, 10_000, 3, 0, 3)
	s.check(9999, 1, "no")
	if d := s.check(10_000, 33, "yes"); d.Remaining != 67 || d.ResetAfter != 10*time.Second {
		t.Errorf("%+v", d)
	}
	s.check(10_001, 1, "no") // a share is rounded down, because all do so
	line := s.report(10_010)[0]
	if line.Sum != 33 || line.Ends != 20_000*ms {
		t.Errorf("told %+v after %+v", line, old)
	}
	s.learn(10_020, 10_010, line, 10_000, 0, 50, 3) // the owner's clock is a little behind
	s.check(10_021, 1, "no")
	s.learn(10_030, 10_010, line, 20_000, 33, 2, 3)
	s.check(10_031, 1, "yes") // and up, so that the last ones go
	s.check(10_032, 1, "no")
}

// TestCut: a node that hears nothing goes on with its last share until the window ends; then the owner is to
// be asked.
func TestCut(t *testing.T) {
	s := newStory(t, 100)
	s.check(1000, 1, "owner")
	line := s.report(1000)[0]
	s.learn(1010, 1000, line, 10_000, 0, 100, 2)
	for at := int64(1050); at < 9990; at += 50 {
		s.check(at, 0, "yes")
		if len(s.report(at)) == 0 {
			t.Fatal("nothing is told any more")
		}
	}
	s.check(9995, 50, "yes")
	s.check(9996, 1, "no")
	s.check(9996, 0, "no") // reads whether one is left
	s.check(10_001, 1, "owner")
}

// TestQuiet: a key that was not asked for is asked of the owner first, and then is decided here again.
func TestQuiet(t *testing.T) {
	s := newStory(t, 100)
	s.check(0, 1, "owner")
	line := s.report(10)[0]
	s.learn(20, 10, line, 10_000, 0, 100, 2)
	s.check(100, 1, "yes")
	line = s.report(110)[0]
	s.learn(120, 110, line, 10_000, 1, 99, 2)
	if lines := s.report(160); len(lines) != 0 {
		t.Errorf("told for nothing: %+v", lines)
	}
	s.check(900, 1, "owner")
	line = s.report(910)[0]
	s.learn(920, 910, line, 10_000, 1, 50, 2)
	s.check(930, 25, "yes")
	s.check(930, 1, "no")
}

// TestOtherLimits: limits that have changed are asked of the owner first.
func TestOtherLimits(t *testing.T) {
	s := newStory(t, 100)
	s.check(0, 1, "owner")
	line := s.report(10)[0]
	s.learn(20, 10, line, 10_000, 0, 100, 1)
	s.limits = windowOf(100, 10*time.Second)
	s.check(30, 1, "yes") // equal
	s.limits = windowOf(50, 10*time.Second)
	s.check(40, 1, "owner")
	if other := s.report(50)[0]; other.Ends != 0 || other.Sum != 0 {
		t.Errorf("told %+v after %+v", other, line)
	}
}

// TestComesBack: a key that was forgotten goes on with the sum that its owner knows, so that it
// needs no second one there, and takes no answer to what was told before.
func TestComesBack(t *testing.T) {
	s := newStory(t, 100)
	s.limits = windowOf(100, time.Hour)
	s.check(0, 1, "owner")
	s.learn(20, 10, s.report(10)[0], 3_600_000, 0, 100, 1)
	s.check(30, 5, "yes")
	line := s.report(60)[0]
	s.learn(70, 60, line, 3_600_000, 5, 95, 1)
	if lines := s.report(20_000); len(lines) != 0 || s.book.Stats(0).Keys != 0 {
		t.Fatalf("told %+v, still in the book", lines)
	}
	s.check(30_000, 1, "owner")
	s.learn(30_010, 60, line, 3_600_000, 3, 97, 1) // very late
	s.check(30_020, 1, "owner")
	again := s.report(30_050)[0]
	if again.Ends != 0 || again.Sum != 0 {
		t.Errorf("told %+v before it is known", again)
	}
	s.learn(30_060, 30_050, again, 3_600_000, 5, 94, 1)
	s.check(30_070, 2, "yes")
	if line := s.report(30_100)[0]; line.Sum != 7 {
		t.Errorf("told %+v, want 5 and 2", line)
	}
}

// TestVerbs: a Read spends nothing, a Charge is never denied, what gives back is for the owner.
func TestVerbs(t *testing.T) {
	s := newStory(t, 100)
	s.check(0, 1, "owner")
	s.learn(20, 10, s.report(10)[0], 10_000, 0, 100, 1)
	ask := func(v bucket.Verb, cost int64) (bucket.Decision, bool) {
		d, _, ok := s.book.Decide(30*ms, &bucket.Request{Key: testKey, Limits: s.limits, Cost: cost, Verb: v})
		return d, ok
	}
	if d, ok := ask(bucket.Read, 100); !ok || !d.Allowed || d.Remaining != 100 || d.ResetAfter != 0 {
		t.Errorf("read: %v %+v", ok, d)
	}
	if d, ok := ask(bucket.Charge, 120); !ok || !d.Allowed || d.Remaining != 0 {
		t.Errorf("charge: %v %+v", ok, d)
	}
	if line := s.report(60)[0]; line.Sum != 120 {
		t.Errorf("told %+v", line)
	}
	for _, v := range []bucket.Verb{bucket.Refund, bucket.Reset} {
		if Serves(&bucket.Request{Limits: s.limits, Verb: v}) {
			t.Errorf("%v is served", v)
		}
	}
}

// TestFull: a book that is full leaves the rest to the owner, until somebody has left.
func TestFull(t *testing.T) {
	b, l := NewBook(1), windowOf(10, 10*time.Second)
	ask := func(at int64, hi uint64) {
		b.Decide(at, &bucket.Request{Key: bucket.Key{Hi: hi}, Limits: l, Cost: 1})
	}
	ask(0, 1)
	ask(0, 2)
	if s := b.Stats(0); s.Keys != 1 || s.Full != 1 {
		t.Errorf("%+v", s)
	}
	b.Report(int64(Idle), func(message.Line) { t.Error("told of what nobody asks for") })
	ask(int64(Idle), 2)
	if s := b.Stats(int64(Idle)); s.Keys != 1 || s.Full != 1 {
		t.Errorf("%+v", s)
	}
}

// TestStrangeAnswers: what no honest owner says changes nothing.
func TestStrangeAnswers(t *testing.T) {
	s := newStory(t, 100)
	s.check(0, 1, "owner")
	line := s.report(10)[0]
	s.learn(20, 10, line, 10_000, 0, 100, 0) // nobody shares
	s.learn(20, 30, line, 10_000, 0, 100, 1) // answers what was not sent yet
	s.learn(20, -5, line, 10_000, 0, 100, 1) // answers what was sent before anybody asked
	s.check(25, 1, "owner")
}

// TestSharers: until an owner may have heard of all, everybody is taken for a reporter; then those who are.
func TestSharers(t *testing.T) {
	h, l := NewOwner(newSimTable(), 1), windowOf(100, 10*time.Second)
	count := func(at int64, boot string, hi uint64) int {
		s, _, ok := h.Count(at*ms, Tag(boot), &message.Line{Key: bucket.Key{Hi: hi}, Limits: l, Ends: 10_000 * ms}, 5)
		if !ok {
			t.Fatal("not counted")
		}
		return s.Reporters
	}
	for i, c := range []struct {
		at   int64
		boot string
		hi   uint64
		want int
	}{{0, "a", 1, 5}, {500, "a", 1, 5}, {1000, "a", 1, 1}, {1100, "b", 1, 2}, {1200, "b", 2, 5}, {2050, "b", 1, 1}} {
		if got := count(c.at, c.boot, c.hi); got != c.want {
			t.Errorf("%d: %d share, want %d", i, got, c.want)
		}
	}
	h.sweep(20_000 * ms)
	if h.Keys() != 0 {
		t.Errorf("%d keys are remembered", h.Keys())
	}
}

// TestBadLines: a line that makes no sense is not answered.
func TestBadLines(t *testing.T) {
	flow, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	window := windowOf(100, 10*time.Second)
	h := NewOwner(newSimTable(), 1)
	for name, l := range map[string]message.Line{
		"no limits":    {},
		"no window":    {Limits: flow},
		"below zero":   {Limits: window, Sum: -1},
		"above bounds": {Limits: window, Sum: MaxSum + 1},
	} {
		if s, _, ok := h.Count(0, Tag("a"), &l, 1); ok {
			t.Errorf("%s: answered %+v", name, s)
		}
	}
	if s, c, ok := h.Count(0, Tag("a"), &message.Line{Limits: window, Sum: 5, Ends: 20_000 * ms}, 1); !ok || c.Added != 0 || s.Ends != 10_000*ms {
		t.Errorf("of another window: %+v %+v", s, c)
	}
}
