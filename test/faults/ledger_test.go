//go:build linux

package faults

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// use says what callers do with a key, beside checks.
type use string

const (
	// Reservations of rules that charge or release the units at the deadline, and of a limit of
	// units in use.
	useCharge  use = "charge"
	useRelease use = "release"
	useUnits   use = "units"
	// useOnce is charges with idempotency keys.
	useOnce use = "once"
	// useSlots is slots of sessions.
	useSlots use = "slots"
)

const (
	workersOfUse   = 5
	maxUnits       = 5 // of a reservation or a charge
	reservationTTL = 2 * time.Second
	// slotsFree is how soon the slots of a killed process are free; see docs/use/reservations.md.
	slotsFree = 2 * time.Second
)

// book is what the callers of a key know of it. It is safe for concurrent use.
type book struct {
	policy string // as of a group
	use    use
	value  string
	limit  int64

	mu sync.Mutex
	// used is units that were charged, by an answer or a deadline; unsure is those of calls without
	// an answer. over is what was charged beyond what was reserved, and may be beyond the limit.
	used, unsure, over int64
	again              int64 // charged by a settlement after another one
	gone               int64 // reserved, and not found by the settlement
	behind             int64 // charged, and not counted by an owner that was asked afterwards
	overspent          int64 // spent of a reservation beyond its units
	calls              int   // with an answer
	moments, changes   []moment
	last               time.Time // deadline
	history            []string
}

// moment is when units began to be held, or, below 0, ended.
type moment struct {
	at    time.Time
	units int64
}

func (b *book) name() string { return b.policy + "/" + string(b.use) }

func (b *book) check() *sluicev1.Check {
	entry := &sluicev1.Entry{Key: b.name(), Value: b.value}
	return &sluicev1.Check{Domain: domain, Descriptor_: []*sluicev1.Entry{entry}}
}

// note notes what has happened, which changed so many units at the owner; f changes the book.
func (b *book) note(at time.Time, units int64, what string, f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	b.changes = append(b.changes, moment{at, units})
	b.history = append(b.history, fmt.Sprintf("%s %s %d", at.UTC().Format(clock), what, units))
	f()
}

// clock is the form of times in the logs of nodes.
const clock = "15:04:05.000"

func (b *book) hold(at time.Time, units int64) {
	if units != 0 {
		b.moments = append(b.moments, moment{at, units})
	}
}

// most returns the most units that were held at one time.
func most(moments []moment) (peak int64) {
	slices.SortFunc(moments, func(a, b moment) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.units, b.units))
	})
	held := int64(0)
	for _, m := range moments {
		held += m.units
		peak = max(peak, held)
	}
	return peak
}

// mostWithin returns the most units that were changed within a time.
func mostWithin(changes []moment, d time.Duration) int64 {
	both := slices.Clone(changes)
	for _, c := range changes {
		both = append(both, moment{c.at.Add(d), -c.units})
	}
	return most(both)
}

// ledgerFinding is the line of the keys of a policy and a use.
type ledgerFinding struct {
	Calls  int   `json:"calls"` // with an answer
	Used   int64 `json:"used"`
	Unsure int64 `json:"unsure,omitempty"` // may have been charged: no answer came
	// Over is units that were charged beyond what was reserved, Excess those that were held and
	// used at one time beyond that and the limit.
	Over   int64 `json:"over,omitempty"`
	Excess int64 `json:"excess"`
	// Lost is units that callers used and owners do not count, Leaked those that owners count and
	// no caller used, or that are held after their deadline. Again is units that a second
	// settlement charged, Gone those that no settlement found.
	Lost   int64 `json:"lost"`
	Leaked int64 `json:"leaked"`
	Again  int64 `json:"again,omitempty"`
	Gone   int64 `json:"gone,omitempty"`
	// Overspent is units that owners let callers spend beyond what was reserved.
	Overspent int64 `json:"overspent,omitempty"`
	// Behind is the most units of a key that were charged, and that an owner did not count when it
	// was asked afterwards. It had them in the end if they are not lost.
	Behind int64 `json:"behind,omitempty"`
	Fences int   `json:"fences,omitempty"` // that did not rise
	Bound  int64 `json:"bound"`            // of any of these for a key
	Beyond int64 `json:"beyond,omitempty"`
}

// judge adds a book to the finding, of which owners counted so many units and held so many after
// all deadlines.
func (f *ledgerFinding) judge(b *book, bd bound, counted, held int64) (beyond int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	allowed := int64(0)
	if b.policy == "as" {
		allowed = int64(bd.losses) * mostWithin(b.changes, uncopied)
	}
	f.Calls, f.Used, f.Unsure = f.Calls+b.calls, f.Used+b.used, f.Unsure+b.unsure
	f.Over, f.Again, f.Gone = f.Over+b.over, f.Again+b.again, f.Gone+b.gone
	f.Overspent += b.overspent
	f.Bound = max(f.Bound, allowed)
	excess := max(0, most(b.moments)-b.over-b.limit)
	lost := max(0, min(b.used, b.limit)-counted)
	leaked := max(0, counted-b.used-b.unsure) + held
	f.Excess, f.Lost, f.Leaked = f.Excess+excess, f.Lost+lost, f.Leaked+leaked
	f.Behind = max(f.Behind, b.behind)
	for _, n := range []int64{excess, lost, leaked, b.again, b.gone, b.behind, b.overspent} {
		f.Beyond += max(0, n-allowed)
	}
	return f.Beyond
}

// ledger is what callers do beside checks, and their books.
type ledger struct {
	c       *cell
	books   []*book
	targets []*target
	running sync.WaitGroup
	ctx     context.Context // until the fault is over
	stop    context.CancelFunc
	late    context.Context // until calls are to be answered
	expire  context.CancelFunc
	slots   *process.SlotProcess
	fences  map[string]int // that did not rise, by the name of books
}

// policies and uses are those of the books, bookNames the keys of each.
var (
	policies  = []string{"as", "sync", "closed"}
	bookNames = []string{"k0", "k1", "k2", "k3"}
	uses      = []use{useCharge, useRelease, useUnits, useOnce, useSlots}
)

func newLedger(c *cell) *ledger {
	l := &ledger{c: c}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.late, l.expire = context.WithCancel(context.Background())
	limits := map[use]int64{
		useCharge: 1e6, useOnce: 1e6, useRelease: 25, useUnits: 6, useSlots: 3,
	}
	for _, policy := range policies {
		for _, u := range uses {
			for _, value := range bookNames {
				b := &book{policy: policy, use: u, value: value, limit: limits[u]}
				l.books = append(l.books, b)
			}
		}
	}
	return l
}

// rules returns the rules of the books' keys.
func (l *ledger) rules() (text string) {
	for of := range slices.Chunk(l.books, len(bookNames)) {
		b := of[0]
		limit, reservation := hourly, ""
		switch b.use {
		case useCharge, useRelease:
			reservation = fmt.Sprintf("    reservation: {on_expiry: %s}\n", b.use)
		case useUnits, useSlots:
			limit = "algorithm: concurrency"
		}
		limit = fmt.Sprintf("%s, count: %d", limit, b.limit)
		text += ruleText(b.name(), b.policy, limit) + reservation
	}
	return text
}

// begin begins to use the keys, by way of the targets.
func (l *ledger) begin(targets []*target) {
	l.targets = targets
	l.slots = l.c.startSlots(targets)
	number := uint64(0)
	for of := range slices.Chunk(l.books, len(bookNames)) {
		for range workersOfUse {
			number++
			rng := rand.New(rand.NewPCG(l.c.id.seed(), number))
			w := &worker{ledger: l, number: number, rng: rng}
			l.running.Go(func() {
				switch of[0].use {
				case useOnce:
					w.charges(of)
				case useCharge, useRelease, useUnits:
					w.reservations(of)
				}
			})
		}
	}
}

// end ends the use of the keys after the fault: calls under way are answered, and deadlines pass.
func (l *ledger) end() {
	l.stop()
	time.AfterFunc(30*time.Second, l.expire)
	l.running.Wait()
	l.fences = l.endSlots()
	last := time.Now()
	for _, b := range l.books {
		if b.last.After(last) {
			last = b.last
		}
	}
	l.c.wait(time.Until(last.Add(time.Second)))
}

// judge holds every book to the bound.
func (l *ledger) judge(bd bound) map[string]*ledgerFinding {
	found := map[string]*ledgerFinding{}
	deadline := time.Now().Add(10 * time.Second)
	for _, b := range l.books {
		f := found[b.name()]
		if f == nil {
			f = &ledgerFinding{Fences: l.fences[b.name()]}
			f.Beyond = int64(f.Fences)
			found[b.name()] = f
		}
		var counted, held int64
		_, err := until(time.Until(deadline), func() (err error) {
			counted, held, err = l.counted(b)
			return err
		})
		if err != nil {
			l.c.failed("%s %s: %v", b.name(), b.value, err)
			continue
		}
		if before := f.Beyond; f.judge(b, bd, counted, held) > before {
			l.c.t.Logf("%s %s: used %d, unsure %d, counted %d, held %d", b.name(), b.value, b.used, b.unsure, counted, held)
			l.c.t.Log(strings.Join(b.history, "\n"))
		}
	}
	return found
}

// counted returns what owners say of a key: units that are charged, and those that are held.
func (l *ledger) counted(b *book) (charged, held int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	api, q := l.targets[0].api, b.check()
	h, err := api.Held(ctx, &sluicev1.HeldRequest{Domain: q.Domain, Descriptor_: q.Descriptor_})
	if err != nil {
		return 0, 0, err
	}
	counted, err := b.read(ctx, api)
	return counted - h.Units, h.Units, err
}

// read returns the units that an owner counts, those that are held among them.
func (b *book) read(ctx context.Context, api client) (counted int64, err error) {
	q := b.check()
	q.Verb = sluicev1.Verb_VERB_READ
	r, err := api.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{q}})
	if err != nil {
		return 0, err
	}
	d := r.Decisions[0]
	if d.Error != nil || !byOwner(d) || d.Source == sluicev1.Source_SOURCE_LOST_STATE {
		return 0, fmt.Errorf("no owner tells what is left: %v", d)
	}
	return b.limit - d.GetRemaining(), nil
}

func TestBook(t *testing.T) {
	at := func(n int) time.Time { return time.UnixMilli(int64(n)) }
	for _, test := range []struct {
		name          string
		policy        string
		used, unsure  int64
		moments       []moment
		counted, held int64
		want          ledgerFinding
	}{
		{"exact", "sync", 7, 0, []moment{{at(0), 5}, {at(9), 2}}, 7, 0, ledgerFinding{Used: 7}},
		{"forgotten", "sync", 7, 0, nil, 5, 0, ledgerFinding{Used: 7, Lost: 2, Beyond: 2}},
		{"a loss of 50 ms", "as", 7, 0, nil, 5, 0, ledgerFinding{Used: 7, Lost: 2, Bound: 3}},
		{"not used", "sync", 7, 0, nil, 9, 1, ledgerFinding{Used: 7, Leaked: 3, Beyond: 3}},
		{"lost answers", "sync", 7, 2, nil, 9, 0, ledgerFinding{Used: 7, Unsure: 2}},
		{
			"held twice", "sync", 0, 0, []moment{{at(5), -8}, {at(0), 8}, {at(4), 4}}, 0, 0,
			ledgerFinding{Excess: 2, Beyond: 2},
		},
		{
			"one after the other", "sync", 0, 0, []moment{{at(5), 8}, {at(0), 8}, {at(5), -8}}, 0, 0,
			ledgerFinding{},
		},
	} {
		b := &book{policy: test.policy, limit: 10, moments: test.moments}
		b.used, b.unsure = test.used, test.unsure
		b.changes = []moment{{at(0), 2}, {at(60), 1}, {at(100), 2}}
		var got ledgerFinding
		if got.judge(b, bound{losses: 1}, test.counted, test.held); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// telling is the finding as a line of the log.
func (f *ledgerFinding) String() string {
	return strings.Trim(fmt.Sprintf("%+v", *f), "{}")
}
