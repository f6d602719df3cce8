package change

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// Reservations under change: a referee books every promise that nodes make while members come, go and crash, and while answers get
// lost. In the end what the nodes have counted of each budget is what the referee has booked.

var (
	reservations = flag.Int("reservations", 3000, "how many reservations each part of TestChangeReservations makes at least")
	parts        = flag.String("reservations-replication", "sync,async", "the parts of TestChangeReservations")
)

const (
	reserveTeams, reserveModels = 40, 4
	// userLimit is the limit of a user, teamLimit and modelLimit are never reached.
	userLimit, teamLimit, modelLimit = 500, 10_000_000, 100_000_000
	// fullUnits are those of a reservation of a full budget, which has userLimit/fullUnits of them.
	fullUnits = 100
	// reserveCallers is how many callers there are at a time.
	reserveCallers = 24
	// briefTTL is the time until the deadline of reservations that nobody settles before it, longTTL that of others.
	briefTTL, longTTL = 15 * time.Second, time.Hour
)

// reserveRules returns rules whose windows do not end while the test runs.
func reserveRules(replication string) string {
	rule := func(key, limit string) string {
		return fmt.Sprintf("  - {key: %s, replication: %s, limits: [{%s}], reservation: {max_ttl: %v}}\n", key, replication, limit, longTTL)
	}
	window := func(key string, count int) string {
		return rule(key, fmt.Sprintf("algorithm: fixed_window, align: first_hit, count: %d, period: 240h", count))
	}
	return "domain: llm\ndescriptors:\n" + window("spender", userLimit) + window("settler", userLimit) + window("full", userLimit) +
		window("team", teamLimit) + rule("model", fmt.Sprintf("algorithm: token_bucket, count: 1, period: 240h, burst: %d", modelLimit))
}

// promise is one call that a node has answered, or may have carried out, about so many units.
type promise struct {
	sent, answered time.Time
	units          int64
}

// entry is what the referee has booked of a reservation.
type reserved struct {
	budgets  [3]string
	units    int64
	id       string
	promises []promise // the first one reserves
	// charged are the units that nodes have said that they have charged; up to unsure more may have been.
	charged, unsure int64
	// debt are the charged units that were not reserved.
	debt int64
	// odd are answers that only the loss of an owner explains.
	odd []string
}

func (r *reserved) wonder(format string, args ...any) {
	r.odd = append(r.odd, fmt.Sprintf(format, args...))
}

// referee makes reservations at the nodes of a fleet, and books what they end with.
type referee struct {
	*fleet
	users                              int
	done, denied, lost, dropped, again atomic.Int64
	mu                                 struct {
		sync.Mutex
		book  []*reserved
		full  []*reserved // not settled yet
		kills [][2]time.Time
	}
}

// ask calls f at one node after the other until one answers, or once. Now and then the caller stops listening before there is an answer,
// or the answer is lost. tries is 0 if there was none.
func (r *referee) ask(ctx context.Context, x *reserved, units int64, repeat bool, f func(context.Context, sluicev1.RateLimitServiceClient) error) (tries int, err error) {
	sent := time.Now()
	defer func() { x.promises = append(x.promises, promise{sent, time.Now(), units}) }()
	for try := 1; ; try++ {
		nodes := r.nodes()
		n := nodes[rand.IntN(len(nodes))]
		wait := 5 * time.Second
		if rand.IntN(30) == 0 {
			wait = time.Duration(rand.Int64N(int64(3 * time.Millisecond)))
		}
		call, cancel := context.WithTimeout(ctx, wait)
		err := f(call, n.API())
		cancel()
		switch code := status.Code(err); {
		case err == nil && (!repeat || rand.IntN(15) > 0):
			return try, nil
		case err == nil:
			r.dropped.Add(1)
			continue
		case ctx.Err() != nil, code == codes.NotFound:
			return try, err
		case code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled && code != codes.ResourceExhausted:
			r.t.Errorf("%s: %v", n.Name, err)
			return try, err
		}
		if r.lost.Add(1); !repeat {
			return 0, nil
		}
		pause.For(ctx, 2*time.Millisecond)
	}
}

// reserve reserves units of budgets. It returns nil if they are not to be had.
func (r *referee) reserve(ctx context.Context, key string, units int64, ttl time.Duration, budgets ...string) *reserved {
	x := &reserved{units: units}
	request := &sluicev1.ReserveRequest{Units: &units, TtlNs: int64(ttl), IdempotencyKey: key}
	for i, b := range budgets {
		x.budgets[i] = b
		key, value, _ := strings.Cut(b, "=")
		request.Checks = append(request.Checks, &sluicev1.Check{Domain: "llm", Descriptor_: []*sluicev1.Entry{{Key: key, Value: value}}})
	}
	var response *sluicev1.ReserveResponse
	ended := false
	tries, err := r.ask(ctx, x, units, true, func(ctx context.Context, c sluicev1.RateLimitServiceClient) (err error) {
		response, err = c.Reserve(ctx, request)
		for _, d := range response.GetDecisions() {
			switch d.GetError().GetCode() {
			case sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE:
				err = cmp.Or(err, status.Error(codes.Unavailable, d.GetError().GetMessage()))
			case sluicev1.ErrorCode_ERROR_CODE_REJECTED:
				ended = true
			}
		}
		return err
	})
	switch {
	case err != nil:
		return nil
	case ended: // by its deadline, before the caller got an answer
		x.unsure = units
	case !response.GetAllowed():
		if r.denied.Add(1); tries > 1 && ttl == briefTTL { // an attempt that was under way may have kept its units
			x.unsure = units
		}
	case response.GetUnits() != units || response.GetReservation() == "":
		r.t.Errorf("%d units were asked for: %v", units, response)
	default:
		x.id = response.GetReservation()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.book = append(r.mu.book, x); x.id == "" {
		return nil
	}
	return x
}

// settle settles x, now and then twice, and books that actual units are charged in all.
func (r *referee) settle(ctx context.Context, x *reserved, actual, charged, returned int64, late bool) {
	for first, times := true, 1+rand.IntN(2); times > 0; times-- {
		var s *sluicev1.SettleResponse
		_, err := r.ask(ctx, x, charged, true, func(ctx context.Context, c sluicev1.RateLimitServiceClient) (err error) {
			s, err = c.Settle(ctx, &sluicev1.SettleRequest{Reservation: x.id, Actual: actual})
			return err
		})
		switch {
		case err != nil:
			x.wonder("settled: %v", err)
		case s.GetCharged() != charged:
			x.wonder("%d units were charged, want %d: %v", s.GetCharged(), charged, s)
		case s.GetRepeated(): // a node that got no answer from the owner asks again, too
			r.again.Add(1)
		case !first, s.GetLate() != late, returned >= 0 && s.GetReturned() != returned:
			x.wonder("settled, first %v, late %v, to return %d: %v", first, late, returned, s)
		}
		first = false
	}
	x.charged += charged
	r.done.Add(1)
}

// spend spends units of x in parts as they are needed, extends it where it is too small, and gives up if it cannot.
func (r *referee) spend(ctx context.Context, x *reserved, need int64) {
	left, used := x.units, int64(0)
	for used < need && ctx.Err() == nil {
		n := min(need-used, 1+rand.Int64N(1+x.units/2))
		var s *sluicev1.SpendResponse
		tries, err := r.ask(ctx, x, n, false, func(ctx context.Context, c sluicev1.RateLimitServiceClient) (err error) {
			s, err = c.Spend(ctx, &sluicev1.SpendRequest{Reservation: x.id, Units: n})
			return err
		})
		switch {
		case err != nil:
			x.wonder("spent: %v", err)
			used = need
		case tries == 0: // perhaps it is spent, perhaps of some of the budgets
			x.unsure += n
			left, used = -1, used+n
		case s.GetAllowed():
			if left >= 0 && s.GetLeft() != left-n {
				x.wonder("%d of %d were spent: %v", n, left, s)
			}
			x.charged += n
			used += n
			if left >= 0 {
				left -= n
			}
		default:
			x.unsure += n // of the budgets that have more than others, after an answer was lost
			if left >= n {
				x.wonder("%d of %d were not spent: %v", n, left, s)
			} else if left >= 0 && len(x.odd) == 0 {
				x.unsure -= n
			}
			more := need - used
			var e *sluicev1.ExtendResponse
			tries, err := r.ask(ctx, x, more, false, func(ctx context.Context, c sluicev1.RateLimitServiceClient) (err error) {
				e, err = c.Extend(ctx, &sluicev1.ExtendRequest{Reservation: x.id, More: more})
				return err
			})
			switch {
			case err != nil:
				x.wonder("extended: %v", err)
				used = need
			case tries == 0:
				left, used = -1, need
			case !e.GetAllowed():
				used = need
			case left >= 0:
				left += more
			}
		}
	}
	r.settle(ctx, x, 0, 0, left, false)
}

// one makes one reservation over three budgets and ends it. What ends later is added to rest.
func (r *referee) one(ctx context.Context, id int, rest *sync.WaitGroup) {
	kind := [...]string{"spender", "settler"}[id%2]
	budgets := []string{
		fmt.Sprintf("%s=%d", kind, rand.IntN(r.users)), fmt.Sprintf("team=%s%d", kind, rand.IntN(reserveTeams)), fmt.Sprintf("model=m%d", rand.IntN(reserveModels)),
	}
	// Most take little and a few take much, as streams of tokens do.
	units := 1 + int64(rand.ExpFloat64()*rand.ExpFloat64()*40)
	actual := rand.Int64N(units + 1)
	if rand.IntN(10) == 0 {
		actual = units + rand.Int64N(units+1)
	}
	ttl := longTTL
	brief := kind == "settler" && rand.IntN(10) == 0
	if brief {
		ttl = briefTTL
	}
	x := r.reserve(ctx, fmt.Sprintf("r%d", id), units, ttl, budgets...)
	switch {
	case x == nil:
	case brief: // at the deadline all is charged
		rest.Go(func() {
			pause.For(ctx, briefTTL+2*time.Second)
			if charged := max(units, actual); rand.IntN(2) == 0 {
				x.debt = charged - units
				r.settle(ctx, x, actual, charged, 0, true)
			} else {
				x.charged = units
				r.done.Add(1)
			}
		})
	case kind == "spender":
		r.spend(ctx, x, actual)
	default:
		x.debt = max(0, actual-units)
		r.settle(ctx, x, actual, actual, max(0, units-actual), false)
	}
}

// fill reserves all of some budgets.
func (r *referee) fill(ctx context.Context, count int) {
	for i := range count {
		budget := fmt.Sprintf("full=%d", i)
		for k := range userLimit / fullUnits {
			x := r.reserve(ctx, fmt.Sprintf("f%d-%d", i, k), fullUnits, longTTL, budget, "team=settler0", "model=m0")
			if x == nil {
				r.t.Fatalf("%s is full after %d reservations", budget, k)
			}
			r.mu.full = append(r.mu.full, x)
		}
		if x := r.reserve(ctx, fmt.Sprintf("f%d", i), 1, time.Minute, budget, "team=settler0", "model=m0"); x != nil {
			r.t.Fatalf("%s is not full", budget)
		}
	}
	rand.Shuffle(count, func(i, j int) { r.mu.full[i], r.mu.full[j] = r.mu.full[j], r.mu.full[i] })
}

// settleFull settles a reservation of a full budget, with more than it has, and reports whether there was one.
func (r *referee) settleFull(ctx context.Context) bool {
	r.mu.Lock()
	last := len(r.mu.full) - 1
	if last < 0 {
		r.mu.Unlock()
		return false
	}
	x := r.mu.full[last]
	r.mu.full = r.mu.full[:last]
	r.mu.Unlock()
	x.debt = rand.Int64N(fullUnits)
	r.settle(ctx, x, fullUnits+x.debt, fullUnits+x.debt, 0, false)
	return true
}

// kill crashes a node and notes when. A crash is of a cluster whose partitions have replicas.
func (r *referee) kill(n *process.Node) {
	waitCopied(r.t, r.nodes())
	from := time.Now()
	r.crash(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.kills = append(r.mu.kills, [2]time.Time{from, time.Now()})
}

// TestChangeReservations: through growth from 3 to 7 nodes and back, rolling restarts and crashes, with lost answers, each reservation
// ends once, and nothing is counted above a limit but what was needed beyond the reservations. With asynchronous replication a
// crash costs what docs/internals/consistency.md says.
func TestChangeReservations(t *testing.T) {
	for _, replication := range strings.Split(*parts, ",") {
		t.Run(replication, func(t *testing.T) {
			r := &referee{fleet: newFleet(t, 3, process.RulesOf(t, reserveRules(replication))), users: max(300, *reservations/35)}
			ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
			defer cancel()
			r.fill(ctx, max(20, *reservations/500))
			var enough atomic.Bool
			var ids atomic.Int64
			var callers, rest sync.WaitGroup
			for range reserveCallers {
				callers.Go(func() {
					for !enough.Load() && ctx.Err() == nil {
						if rand.IntN(40) > 0 || !r.settleFull(ctx) {
							r.one(ctx, int(ids.Add(1)), &rest)
						}
					}
				})
			}
			pass(time.Second)
			cycles := 0
			for ; cycles == 0 || int(r.done.Load()) < *reservations && ctx.Err() == nil; cycles++ {
				r.grow(4)
				for _, n := range r.nodes()[3:] {
					r.leave(n)
				}
				for _, n := range r.nodes() {
					r.restart(n)
				}
				for i := range 2 {
					n := r.nodes()[i]
					r.kill(n)
					pass(time.Second)
					r.enlist(r.launch(n.Name))
				}
			}
			enough.Store(true)
			callers.Wait()
			for r.settleFull(ctx) {
			}
			rest.Wait()
			if ctx.Err() != nil {
				t.Error("not all reservations were settled in time")
			}
			t.Logf("%d cycles, %d crashes: %d reservations ended, %d denied, %d calls failed, %d answers dropped, %d settlements repeated",
				cycles, len(r.mu.kills), r.done.Load(), r.denied.Load(), r.lost.Load(), r.dropped.Load(), r.again.Load())
			r.compare(replication == "async")
		})
	}
}

// lossWindow is the time before a crash whose decisions may be lost with asynchronous replication.
const lossWindow = 50 * time.Millisecond

// atRisk returns how many units of x a crash may have lost or doubled: those of calls that were carried out in the last 50 ms of an owner.
func (r *referee) atRisk(x *reserved) (units int64) {
	for i, p := range x.promises {
		for _, k := range r.mu.kills {
			if p.sent.After(k[1]) || p.answered.Before(k[0].Add(-lossWindow)) {
				continue
			}
			if units += p.units; i == 0 { // of a reservation that is lost nothing is charged
				units += x.charged + x.unsure
			}
		}
	}
	return units
}

// budget is what the referee has booked of one.
type budget struct {
	charged, unsure, debt, risk int64
}

// compare holds what the nodes have counted against the book.
func (r *referee) compare(async bool) {
	budgets := make(map[string]*budget)
	odd := 0
	for _, x := range r.mu.book {
		var risk int64
		if async {
			risk = r.atRisk(x)
		}
		if len(x.odd) > 0 {
			if odd++; risk == 0 {
				r.t.Errorf("reservation of %d units of %v: %s", x.units, x.budgets, strings.Join(x.odd, "; "))
			}
		}
		for _, name := range x.budgets {
			b := budgets[name]
			if b == nil {
				b = new(budget)
				budgets[name] = b
			}
			b.charged, b.unsure, b.debt, b.risk = b.charged+x.charged, b.unsure+x.unsure, b.debt+x.debt, b.risk+risk
		}
	}
	operator := r.nodes()[0].Operator()
	type sum struct{ budgets, at, counted, over, debt, unsure, held, off, risk int64 }
	sums := make(map[string]*sum)
	for name, b := range budgets {
		key, value, _ := strings.Cut(name, "=")
		var x *adminv1alpha1.InspectResponse
		process.Eventually(r.t, 10*time.Second, "the state of "+name, func() (err error) {
			x, err = operator.Inspect(r.t.Context(), &adminv1alpha1.InspectRequest{Domain: "llm", Descriptor_: []*sluicev1.Entry{{Key: key, Value: value}}})
			return err
		})
		limit := x.GetLimits()[0]
		most := max(limit.GetLimit().GetCount(), limit.GetLimit().GetBurst())
		s := sums[key]
		if s == nil {
			s = new(sum)
			sums[key] = s
		}
		// What an attempt has got whose caller asked again meanwhile, and was denied then, is held until its deadline.
		counted := limit.GetSpent() - x.GetGranted()
		if counted < b.charged-b.risk || counted > b.charged+b.unsure+b.risk {
			r.t.Errorf("%s: the nodes have counted %d units; %d were charged, perhaps %d more; a crash may have lost %d", name, counted, b.charged, b.unsure, b.risk)
		}
		if above := b.charged - b.debt - most; above > b.risk {
			r.t.Errorf("%s: %d units above the limit of %d, %d of them debts; a crash may have lost %d", name, b.charged-most, most, b.debt, b.risk)
		}
		if above := max(0, b.charged-most, counted-most); key == "full" && (above < b.debt-b.risk || above > b.debt+b.risk) || key == "spender" && above > b.risk {
			r.t.Errorf("%s: %d units above the limit, want %d; a crash may have lost %d", name, above, b.debt, b.risk)
		}
		s.budgets, s.counted, s.debt, s.unsure, s.held, s.risk = s.budgets+1, s.counted+counted, s.debt+b.debt, s.unsure+b.unsure, s.held+x.GetGranted(), s.risk+b.risk
		s.over, s.off = s.over+max(0, b.charged-most), s.off+max(0, b.charged-counted, counted-b.charged-b.unsure)
		if counted >= most-userLimit/20 {
			s.at++
		}
	}
	for key, s := range sums {
		r.t.Logf("%s: %d budgets, %d at their limits; %d units counted, %d above limits, %d needed beyond reservations, %d in doubt by lost answers, %d held; a crash has lost %d of at most %d",
			key, s.budgets, s.at, s.counted, s.over, s.debt, s.unsure, s.held, s.off, s.risk)
	}
	r.t.Logf("%d reservations with answers that a crash explains", odd)
}
