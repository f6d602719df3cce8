//go:build change

package e2e

import (
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

	"github.com/sluice-project/sluice/internal/leaf/pause"
	adminv1alpha1 "github.com/sluice-project/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Reservations under change: a referee books every promise that nodes make while members come, go and crash, and while answers get
// lost. In the end what the nodes have counted of each budget is what the referee has booked.

var reservations = flag.Int("reservations", 4000, "how many reservations TestChangeReservations makes at least")

// The budgets of a reservation are one of each key. Their windows do not end while the test runs.
const (
	reserveUsers, reserveTeams, reserveModels = 400, 40, 4

	reserveRules = `domain: llm
descriptors:
  - key: user
    replication: sync
    limits: [{algorithm: fixed_window, align: first_hit, count: 500, period: 240h}]
  - key: team
    replication: sync
    limits: [{algorithm: fixed_window, align: first_hit, count: 100000, period: 240h}]
  - key: model
    replication: sync
    limits: [{algorithm: token_bucket, count: 1, period: 240h, burst: 100000000}]
`
)

// referee makes reservations at the nodes of a fleet, and books what they end with.
type referee struct {
	*fleet
	done, denied, lost, repeated atomic.Int64
	mu                           struct {
		sync.Mutex
		charged, debt map[string]int64 // by budget
	}
}

// ask calls f at one node after the other until one answers. Now and then the caller stops listening before there is an answer.
func (r *referee) ask(ctx context.Context, f func(context.Context, sluicev1.RateLimitServiceClient) error) (lost int) {
	for {
		nodes := r.nodes()
		n := nodes[rand.IntN(len(nodes))]
		wait := 5 * time.Second
		if rand.IntN(12) == 0 {
			wait = time.Duration(rand.Int64N(int64(2 * time.Millisecond)))
		}
		call, cancel := context.WithTimeout(ctx, wait)
		err := f(call, n.api())
		cancel()
		if err == nil || ctx.Err() != nil {
			return lost
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
		default:
			r.t.Errorf("%s: %v", n.name, err)
			return lost
		}
		lost++
		pause.For(ctx, 2*time.Millisecond)
	}
}

// one makes one reservation over three budgets and ends it.
func (r *referee) one(ctx context.Context, id int) {
	budgets := []string{
		fmt.Sprintf("user=u%d", rand.IntN(reserveUsers)), fmt.Sprintf("team=t%d", rand.IntN(reserveTeams)), fmt.Sprintf("model=m%d", rand.IntN(reserveModels)),
	}
	// Most take little and a few take much, as streams of tokens do.
	units := 1 + int64(rand.ExpFloat64()*rand.ExpFloat64()*40)
	request := &sluicev1.ReserveRequest{Units: &units, TtlNs: int64(10 * time.Minute), IdempotencyKey: fmt.Sprintf("r%d", id)}
	for _, b := range budgets {
		key, value, _ := strings.Cut(b, "=")
		request.Checks = append(request.Checks, &sluicev1.Check{Domain: "llm", Descriptor_: []*sluicev1.Entry{{Key: key, Value: value}}})
	}
	var response *sluicev1.ReserveResponse
	r.lost.Add(int64(r.ask(ctx, func(ctx context.Context, c sluicev1.RateLimitServiceClient) (err error) {
		response, err = c.Reserve(ctx, request)
		for _, d := range response.GetDecisions() {
			if code := d.GetError().GetCode(); err == nil && code == sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE {
				err = status.Error(codes.Unavailable, d.GetError().GetMessage())
			}
		}
		return err
	})))
	if ctx.Err() != nil {
		return
	}
	if !response.GetAllowed() || response.GetReservation() == "" {
		r.denied.Add(1)
		return
	}
	if response.GetUnits() != units {
		r.t.Errorf("%d units were reserved instead of %d", response.GetUnits(), units)
	}
	actual := rand.Int64N(units + 1)
	if rand.IntN(10) == 0 {
		actual = units + rand.Int64N(units+1)
	}
	first := true
	for range 1 + rand.IntN(2) {
		var s *sluicev1.SettleResponse
		lost := r.ask(ctx, func(ctx context.Context, c sluicev1.RateLimitServiceClient) (err error) {
			s, err = c.Settle(ctx, &sluicev1.SettleRequest{Reservation: response.GetReservation(), Actual: actual})
			return err
		})
		if r.lost.Add(int64(lost)); ctx.Err() != nil {
			r.t.Errorf("reservation %d was not settled in time", id)
			return
		}
		// A node that got no answer from the owner asks again, so even the first settlement may be answered as repeated.
		if s.GetCharged() != actual || s.GetLate() || !s.GetRepeated() && (!first || s.GetReturned() != max(0, units-actual)) {
			r.t.Errorf("%d of %d units settled, %d answers lost, first %v: %v", actual, units, lost, first, s)
		}
		if s.GetRepeated() {
			r.repeated.Add(1)
		}
		first = false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range budgets {
		r.mu.charged[b] += actual
		r.mu.debt[b] += max(0, actual-units)
	}
	r.done.Add(1)
}

// TestChangeReservations: through growth from 3 to 7 nodes and back, a rolling restart and a crash, with lost answers, each
// reservation ends once, and nothing is counted above a limit but what was needed beyond the reservations.
func TestChangeReservations(t *testing.T) {
	r := &referee{fleet: newFleet(t, 3, writeRules(t, reserveRules))}
	r.mu.charged, r.mu.debt = make(map[string]int64), make(map[string]int64)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	var enough atomic.Bool
	var ids atomic.Int64
	var callers sync.WaitGroup
	for range 24 {
		callers.Go(func() {
			for !enough.Load() || int(r.done.Load()+r.denied.Load()) < *reservations {
				if r.one(ctx, int(ids.Add(1))); ctx.Err() != nil || t.Failed() {
					return
				}
			}
		})
	}
	pass(time.Second)
	r.grow(4)
	for _, n := range r.nodes()[3:] {
		r.leave(n)
	}
	for _, n := range r.nodes() {
		r.restart(n)
	}
	r.crash(r.nodes()[1])
	waitAgreed(t, r.nodes(), 20*time.Second)
	pass(2 * time.Second)
	enough.Store(true)
	callers.Wait()
	t.Logf("%d reservations settled, %d denied, %d answers lost, %d settlements repeated", r.done.Load(), r.denied.Load(), r.lost.Load(), r.repeated.Load())
	r.compare()
}

// compare holds what the nodes have counted against the book.
func (r *referee) compare() {
	operator := r.nodes()[0].operator()
	over, debts, held := int64(0), int64(0), int64(0)
	for budget, charged := range r.mu.charged {
		key, value, _ := strings.Cut(budget, "=")
		x, err := operator.Inspect(r.t.Context(), &adminv1alpha1.InspectRequest{Domain: "llm", Descriptor_: []*sluicev1.Entry{{Key: key, Value: value}}})
		if err != nil {
			r.t.Fatal(err)
		}
		limit := x.GetLimits()[0]
		most := max(limit.GetLimit().GetCount(), limit.GetLimit().GetBurst())
		// What an attempt has got whose caller asked again meanwhile, and was denied then, is free again at its deadline.
		if counted := limit.GetSpent() - x.GetGranted(); counted != charged {
			r.t.Errorf("%s: the nodes have counted %d units, %d were settled", budget, counted, charged)
		}
		held += x.GetGranted()
		if above := charged - most; above > 0 {
			over += above
		}
		if above := charged - r.mu.debt[budget] - most; above > 0 {
			r.t.Errorf("%s: %d units above the limit of %d, %d of them debts", budget, charged-most, most, r.mu.debt[budget])
		}
		debts += r.mu.debt[budget]
	}
	r.t.Logf("%d budgets, %d units above limits, %d units needed beyond reservations, %d still held", len(r.mu.charged), over, debts, held)
}
