package grpcapi

import (
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/internal/apitest"
)

// BenchmarkReserveAndSettle reports the CPU of reserving and settling ÷ that of a check, median of alternating rounds: through the
// limiter, and through gRPC with its client in the same process.
func BenchmarkReserveAndSettle(b *testing.B) {
	const each, keys = 500, 1000
	node := apitest.NewNode(b)
	l := apitest.NewLimiter(b, node, `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000000}
`, member.Member{Name: "n1", Boot: "b1", State: member.Serving})
	d, ctx := open(b, Config{Limiter: l}), b.Context()
	batch := func(user string) *limiter.Batch {
		q := limiter.NewBatch()
		c := q.Add()
		c.Domain, c.Descriptor = "shop", append(c.Descriptor, rules.Entry{Key: "user", Value: user})
		return q
	}
	units := int64(5)
	work := []struct {
		name       string
		check, run func(name string) (bool, error)
	}{
		{"limiter", func(name string) (bool, error) {
			q := batch(name)
			defer q.Release()
			err := l.Check(ctx, q)
			return q.Results[0].Allowed, err
		}, func(name string) (bool, error) {
			q := batch(name)
			defer q.Release()
			x, err := l.Reserve(ctx, q, limiter.ReserveRequest{Units: units})
			if err != nil {
				return false, err
			}
			s, err := l.Settle(ctx, x.ID, 3)
			return s.Returned == 2, err
		}},
		{"grpc", func(name string) (bool, error) {
			res, err := d.client.Check(ctx, request(user(name)))
			return res.GetAllowed(), err
		}, func(name string) (bool, error) {
			x, err := d.client.Reserve(ctx, &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{user(name)}, Units: &units})
			if err != nil {
				return false, err
			}
			s, err := d.client.Settle(ctx, &sluicev1.SettleRequest{Reservation: x.GetReservation(), Actual: 3})
			return s.GetReturned() == 2, err
		}},
	}
	var ratios, checks [2][]float64
	n := 0
	took := func(f func(string) (bool, error)) float64 {
		began := cpu(b)
		for range each {
			n++
			if ok, err := f(strconv.Itoa(n % keys)); !ok || err != nil {
				b.Fatal(ok, err)
			}
			node.Now.Add(int64(10 * time.Millisecond))
		}
		return float64(cpu(b)-began) / each
	}
	for round := range b.N {
		for i, w := range work {
			one, two := took(w.check), took(w.run)
			ratios[i], checks[i] = append(ratios[i], two/one), append(checks[i], one)
		}
		node.Table.Sweep(node.Now.Load(), round%7) // outcomes end; onenode has so many shards
	}
	for i, w := range work {
		slices.Sort(ratios[i])
		slices.Sort(checks[i])
		b.ReportMetric(ratios[i][len(ratios[i])/2], w.name+"-checks")
		b.ReportMetric(checks[i][len(checks[i])/2], w.name+"-ns/check")
	}
}

// cpu returns the CPU time of the process.
func cpu(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
