package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	sluice "github.com/sluicecluster/sluice/client"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

var (
	deadlineCalls = flag.Int("deadline-calls", 1000, "calls of each caller of TestDeadlines")
	quietLasts    = flag.Duration("quiet-lasts", time.Minute, "how long TestDeadlinesQuiet lasts")
	quietRate     = flag.Int("quiet-rate", 2000, "calls a second of TestDeadlinesQuiet")
)

const (
	deadlineKeys  = 10 // of the owner that fails, for each rule
	deadlineLimit = 60
)

var deadlinePolicies = []string{"share", "closed", "open", "sync"}

func deadlineRules(t *testing.T) string {
	t.Helper()
	text := strings.Builder{}
	text.WriteString("domain: deadline\nauthorize:\n  descriptors:\n    - - {key: rule, from: header, name: X-Rule}\n      - {key: user, from: header, name: X-User}\ndescriptors:\n")
	for _, p := range deadlinePolicies {
		policy := "on_failure: " + p + ", replication: async"
		if p == "sync" {
			policy = "on_failure: share, replication: sync"
		}
		fmt.Fprintf(&text, "  - {key: rule, value: %s, descriptors: [{key: user, %s, limits: [{algorithm: fixed_window, align: first_hit, count: %d, period: 1h}]}]}\n", p, policy, deadlineLimit)
	}
	return process.RulesOf(t, text.String())
}

// outcome is the answer to one call.
type outcome struct {
	at      time.Time
	took    time.Duration
	key     string
	allowed bool
	source  string // "" where the API does not say
	err     error
}

// deadlineAPI makes a check of a key under a rule, by a caller that waits for so long.
type deadlineAPI func(ctx context.Context, rule, user string) (allowed bool, source string, err error)

func byGRPC(n *process.Node) deadlineAPI { return byConn(n.API()) }

func byConn(api sluicev1.RateLimitServiceClient) deadlineAPI {
	return func(ctx context.Context, rule, user string) (bool, string, error) {
		res, err := api.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
			Domain: "deadline", Descriptor_: []*sluicev1.Entry{{Key: "rule", Value: rule}, {Key: "user", Value: user}},
		}}})
		if err != nil {
			return false, "", err
		}
		d := res.Decisions[0]
		if e := d.GetError(); e != nil {
			return false, "", errors.New(e.String())
		}
		return d.Allowed, strings.ToLower(strings.TrimPrefix(d.Source.String(), "SOURCE_")), nil
	}
}

func byEnvoy(n *process.Node) deadlineAPI {
	api := ratelimitv3.NewRateLimitServiceClient(n.Dial())
	return func(ctx context.Context, rule, user string) (bool, string, error) {
		res, err := api.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "deadline", Descriptors: []*commonv3.RateLimitDescriptor{
			{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "rule", Value: rule}, {Key: "user", Value: user}}},
		}}, grpc.WaitForReady(false))
		return res.GetOverallCode() == ratelimitv3.RateLimitResponse_OK, "", err
	}
}

func byHTTP(n *process.Node) deadlineAPI {
	return func(ctx context.Context, rule, user string) (bool, string, error) {
		body := fmt.Sprintf(`{"domain":"deadline","descriptor":["rule=%s","user=%s"]}`, rule, user)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.HTTP+"/v1/check", bytes.NewReader([]byte(body)))
		if err != nil {
			return false, "", err
		}
		if deadline, ok := ctx.Deadline(); ok {
			r.Header.Set("Grpc-Timeout", fmt.Sprintf("%du", time.Until(deadline).Microseconds()))
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, "", err
		}
		defer res.Body.Close()
		var answer struct {
			Allowed bool
			Source  string
		}
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK {
			return false, "", fmt.Errorf("%s: %w", res.Status, err)
		}
		return answer.Allowed, answer.Source, nil
	}
}

// byProxy calls as a proxy with a timeout does, which names none: the node has --assume-deadline.
func byProxy(n *process.Node) deadlineAPI {
	return func(ctx context.Context, rule, user string) (bool, string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/v1/authorize/deadline", nil)
		if err != nil {
			return false, "", err
		}
		r.Header.Set("X-Rule", rule)
		r.Header.Set("X-User", user)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, "", err
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusTooManyRequests {
			return false, "", errors.New(res.Status)
		}
		return res.StatusCode == http.StatusOK, "", nil
	}
}

func byGo(n *process.Node) deadlineAPI { return byClient(n) }

// byGoAlone knows no other node, so each check is forwarded.
func byGoAlone(n *process.Node) deadlineAPI { return byClient(n, sluice.WithoutRouting()) }

func byClient(n *process.Node, options ...sluice.Option) deadlineAPI {
	c, err := sluice.New(n.GRPC, options...)
	if err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() { c.Close() })
	return func(ctx context.Context, rule, user string) (bool, string, error) {
		d, err := c.Key("deadline", "rule", rule, "user", user).Check(ctx, 1)
		return d.Allowed, d.Source.String(), err
	}
}

// TestDeadlines: callers with 20, 50 and 100 ms, while the owner of their keys is stopped, or
// killed: each call is answered in time, nothing is admitted beyond the bound, and the new owner
// decides as soon as it decides for callers without a deadline.
func TestDeadlines(t *testing.T) {
	for _, fault := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, timeout := range []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond} {
			for _, api := range []struct {
				name string
				open func(*process.Node) deadlineAPI
			}{{"grpc", byGRPC}, {"envoy", byEnvoy}, {"http", byHTTP}, {"forward-auth", byProxy}, {"go", byGo}, {"go-alone", byGoAlone}} {
				name := fmt.Sprintf("%s/%v/%v", api.name, map[syscall.Signal]string{syscall.SIGSTOP: "stop", syscall.SIGKILL: "kill"}[fault], timeout)
				t.Run(name, func(t *testing.T) { underFault(t, fault, timeout, api.open) })
			}
		}
	}
}

// underFault has callers of each rule call a node while the owner of their keys fails.
func underFault(t *testing.T, fault syscall.Signal, timeout time.Duration, open func(*process.Node) deadlineAPI) {
	nodes := process.Cluster(t, 3, deadlineRules(t), "--assume-deadline", fmt.Sprintf("forward-auth=%v", timeout))
	a, victim := nodes[0], nodes[1]
	process.Eventually(t, process.Quiet, "all partitions have replicas", func() error {
		if n := a.Metric("sluice_partitions_unprotected"); n != 0 {
			return fmt.Errorf("%v have none", n)
		}
		return nil
	})
	deadlineTrial{t, timeout, a.API(), open(a), victim.Name, func() { victim.Signal(fault) }}.run()
	if fault == syscall.SIGSTOP {
		victim.Signal(syscall.SIGCONT)
	}
	for _, line := range a.Lines("sluice_answered_by_margin_total") {
		t.Log(line)
	}
}

// deadlineTrial has callers with a deadline ask a node for keys of the node victim, which fails
// meanwhile.
type deadlineTrial struct {
	t       *testing.T
	timeout time.Duration
	api     sluicev1.RateLimitServiceClient // of that node
	ask     deadlineAPI
	victim  string
	fault   func()
}

// keys returns keys of the victim by rule, one more than callers ask for.
func (x deadlineTrial) keys() map[string][]string {
	x.t.Helper()
	keys := map[string][]string{}
	for _, rule := range deadlinePolicies {
		for i := 0; len(keys[rule]) < deadlineKeys+1; i++ {
			user := fmt.Sprint("u", i)
			res, err := x.api.Check(x.t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
				Domain: "deadline", Descriptor_: []*sluicev1.Entry{{Key: "rule", Value: rule}, {Key: "user", Value: user}}, Cost: new(int64),
			}}})
			if err != nil {
				x.t.Fatal(err)
			}
			if res.Decisions[0].Owner == x.victim {
				keys[rule] = append(keys[rule], user)
			}
		}
	}
	return keys
}

func (x deadlineTrial) run() {
	x.t.Helper()
	keys := x.keys()
	time.Sleep(2 * time.Second)                                                            // nodes that have settled for so long give shares
	if _, _, err := x.ask(x.t.Context(), "open", keys["open"][deadlineKeys]); err != nil { // connects
		x.t.Fatal(err)
	}
	results, owned := map[string][]outcome{}, map[string]time.Duration{}
	var mu sync.Mutex
	var all sync.WaitGroup
	var began sync.WaitGroup
	began.Add(len(deadlinePolicies))
	for _, rule := range deadlinePolicies {
		all.Go(func() {
			var list []outcome
			tick := time.NewTicker(4 * time.Millisecond)
			defer tick.Stop()
			for i := range *deadlineCalls {
				if i == *deadlineCalls/4 {
					began.Done()
				}
				o := outcome{key: keys[rule][i%deadlineKeys], at: time.Now()}
				ctx, cancel := context.WithTimeout(context.Background(), x.timeout)
				o.allowed, o.source, o.err = x.ask(ctx, rule, o.key)
				o.took = time.Since(o.at)
				cancel()
				list = append(list, o)
				<-tick.C
			}
			mu.Lock()
			results[rule] = list
			mu.Unlock()
		})
	}
	began.Wait()
	faultAt := time.Now()
	x.fault()
	// Callers without a deadline tell when there is a new owner that decides.
	for _, rule := range deadlinePolicies {
		all.Go(func() {
			at := x.ownedAfter(faultAt, rule, keys[rule][deadlineKeys])
			mu.Lock()
			owned[rule] = at
			mu.Unlock()
		})
	}
	all.Wait()
	for _, rule := range deadlinePolicies {
		report(x.t, rule, x.timeout, faultAt, owned[rule], results[rule])
	}
}

func (x deadlineTrial) ownedAfter(faultAt time.Time, rule, user string) time.Duration {
	for byOwner := byConn(x.api); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, source, err := byOwner(ctx, rule, user)
		cancel()
		after := time.Since(faultAt)
		switch {
		case err == nil && (source == "owned" || source == "forwarded"):
			return after
		case after > 10*time.Second:
			x.t.Errorf("%s: there is no new owner: %v, %v", rule, source, err)
			return after
		}
	}
}

// report judges the calls of one rule.
func report(t *testing.T, rule string, timeout time.Duration, faultAt time.Time, owned time.Duration, list []outcome) {
	t.Helper()
	var took, inGap []time.Duration
	failed, admitted, last := 0, map[string]int{}, time.Duration(0)
	sources := map[string]int{}
	for _, o := range list {
		at := o.at.Sub(faultAt)
		took = append(took, o.took)
		if at > 0 && at < owned {
			inGap = append(inGap, o.took)
		}
		if o.err != nil {
			failed++
			t.Logf("%s: %v after the fault: %v", rule, at, o.err)
		}
		if o.allowed {
			admitted[o.key]++
		}
		sources[o.source]++
		if o.source == "share" || o.source == "closed" || o.source == "open" {
			last = max(last, at)
		}
	}
	slices.Sort(took)
	slices.Sort(inGap)
	most := 0
	for _, n := range admitted {
		most = max(most, n)
	}
	quantile := func(list []time.Duration, q float64) time.Duration {
		if len(list) == 0 {
			return 0
		}
		return list[int(q*float64(len(list)-1))].Round(10 * time.Microsecond)
	}
	t.Logf("%s: %d calls, %d failed, p50 %v p99 %v max %v; in the gap of %v: %d calls, p50 %v, p99 %v; last fallback %v after the fault; at most %d of %d admitted of a key; %v",
		rule, len(list), failed, quantile(took, 0.5), quantile(took, 0.99), quantile(took, 1), owned.Round(time.Millisecond), len(inGap), quantile(inGap, 0.5), quantile(inGap, 0.99), last.Round(time.Millisecond), most, deadlineLimit, sources)
	if failed > 0 {
		t.Errorf("%s: %d of %d calls failed", rule, failed, len(list))
	}
	if p := quantile(took, 0.99); p > timeout-2*time.Millisecond {
		t.Errorf("%s: p99 is %v with a deadline of %v", rule, p, timeout)
	}
	// The share of one of three, and with async what 50 ms admit.
	bound := map[string]int{"share": deadlineLimit + deadlineLimit/3 + 5, "sync": deadlineLimit + deadlineLimit/3, "closed": deadlineLimit + 5, "open": len(list)}[rule]
	if most > bound {
		t.Errorf("%s: %d admitted, want at most %d", rule, most, bound)
	}
	if last > owned+100*time.Millisecond {
		t.Errorf("%s: the last fallback came %v after the fault, and the new owner decided after %v", rule, last, owned)
	}
}

// TestDeadlinesQuiet: without a fault, callers with 20 ms get all answers of owners.
func TestDeadlinesQuiet(t *testing.T) {
	nodes := process.Cluster(t, 3, "")
	time.Sleep(2 * time.Second)
	const callers = 16
	var all sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	failed := 0
	end := time.Now().Add(*quietLasts)
	for caller := range callers {
		all.Go(func() {
			api := process.NewAPI(nodes[caller%3].Dial())
			tick := time.NewTicker(callers * time.Second / time.Duration(*quietRate))
			defer tick.Stop()
			var own []time.Duration
			bad := 0
			for i := 0; time.Now().Before(end); i++ {
				<-tick.C
				start := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				if _, err := api.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck(fmt.Sprint(caller, "-", i%997))}}); err != nil {
					bad++
				}
				cancel()
				own = append(own, time.Since(start))
			}
			mu.Lock()
			took, failed = append(took, own...), failed+bad
			mu.Unlock()
		})
	}
	all.Wait()
	slices.Sort(took)
	t.Logf("%d calls in %v, %d failed, p50 %v, p99 %v, max %v", len(took), *quietLasts, failed, took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	for _, n := range nodes {
		for _, line := range n.Lines("sluice_answered_by_margin_total") {
			t.Errorf("%s: %s", n.Name, line)
		}
	}
	if failed > 0 {
		t.Errorf("%d calls failed", failed)
	}
}
