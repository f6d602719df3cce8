//go:build linux

package change

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// Leases of client processes: a referee books in memory that outlives them what each has admitted, while they come, go, are stopped and are
// killed, and while all nodes restart.

var leaseClients = flag.Int("lease-clients", 100, "how many client processes TestChangeClientLeases has at a time")

const (
	leaseKeys = 4

	// leaseCaller is set for a process of this test that is a caller: its key, and the nodes.
	leaseCaller, leaseBook = "SLUICE_E2E_LEASE_CALLER", "SLUICE_E2E_LEASE_BOOK"
)

func init() {
	if caller := os.Getenv(leaseCaller); caller != "" {
		if err := callLeased(caller); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// openBook maps a file of one counter for each key, and two of what was leased and of errors.
func openBook(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(8 * (leaseKeys + 2)); err != nil {
		return nil, err
	}
	return syscall.Mmap(int(file.Fd()), 0, 8*(leaseKeys+2), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

func entry(book []byte, i int) *int64 { return (*int64)(unsafe.Pointer(&book[8*i])) }

// callLeased makes 2,400 checks a second until it is told to end.
func callLeased(caller string) error {
	key, targets, _ := strings.Cut(caller, "@")
	k, err := strconv.Atoi(key)
	if err != nil {
		return err
	}
	book, err := openBook(os.Getenv(leaseBook))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := sluice.New(targets, sluice.WithFailurePolicy(sluice.FailClosed()), sluice.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	if err := c.Ready(ctx); err != nil {
		return err
	}
	counter := c.Key("shop", "user", key)
	tick := time.NewTicker(20 * time.Millisecond)
	for ctx.Err() == nil {
		for range 48 {
			ok, err := counter.Allow(ctx)
			if ok {
				atomic.AddInt64(entry(book, k), 1)
			} else if err != nil && ctx.Err() == nil {
				atomic.AddInt64(entry(book, leaseKeys+1), 1)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	for source, n := range c.Stats().Allowed {
		if source.String() == "lease" {
			atomic.AddInt64(entry(book, leaseKeys), int64(n))
		}
	}
	return c.Close()
}

// TestChangeClientLeases: what all clients together admit is never above the limit, and little of it is lost.
func TestChangeClientLeases(t *testing.T) {
	limit := 6_000 * int64(*leaseClients) // ten seconds of each key's callers
	f := newFleet(t, 5, process.RulesOf(t, fmt.Sprintf("domain: shop\ndescriptors:\n  - key: user\n    limits: [{count: %d, period: 240h}]\n", limit)))
	path := filepath.Join(t.TempDir(), "book")
	book, err := openBook(path)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(book)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	started := 0
	call := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d@%s", leaseCaller, started%leaseKeys, strings.Join(f.targets(), ",")), leaseBook+"="+path)
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		started++
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	var callers []*exec.Cmd
	defer func() {
		for _, c := range callers {
			c.Process.Kill()
		}
	}()
	for range *leaseClients {
		callers = append(callers, call())
	}
	left := func() (list [leaseKeys]int64) {
		for k := range list {
			n := f.nodes()[0]
			process.Eventually(t, 10*time.Second, "a decision", func() error {
				res, err := n.API().Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
					Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: strconv.Itoa(k)}}, Verb: sluicev1.Verb_VERB_READ,
				}}})
				if err != nil {
					return err
				}
				d := res.GetDecisions()[0]
				list[k] = d.GetRemaining()
				if d.Remaining == nil {
					return fmt.Errorf("%v", d)
				}
				return nil
			})
		}
		return list
	}
	rolled := make(chan struct{})
	go func() {
		defer close(rolled)
		for _, n := range f.nodes() {
			f.restart(n)
		}
	}()
	killed, ended := 0, 0
	var stopped *os.Process
	for rolling := true; rolling || left() != [leaseKeys]int64{}; {
		for _, s := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			i := (killed + ended) % len(callers)
			callers[i].Process.Signal(s)
			callers[i].Wait()
			if s == syscall.SIGKILL {
				killed++
			} else {
				ended++
			}
			callers[i] = call()
		}
		if stopped != nil {
			stopped.Signal(syscall.SIGCONT)
		}
		stopped = callers[(killed+ended+len(callers)/2)%len(callers)].Process // beyond the deadlines of its leases
		stopped.Signal(syscall.SIGSTOP)
		if !pause.For(ctx, 500*time.Millisecond) {
			t.Fatalf("not within 2 minutes: the end of the limits; %v left", left())
		}
		select {
		case <-rolled:
			rolling = false
		default:
		}
	}
	stopped.Signal(syscall.SIGCONT)
	for _, c := range callers {
		c.Process.Signal(syscall.SIGTERM)
	}
	for _, c := range callers {
		c.Wait()
	}
	admitted := int64(0)
	for k := range leaseKeys {
		n := atomic.LoadInt64(entry(book, k))
		if admitted += n; n > limit {
			t.Errorf("key %d: %d admitted, %d over the limit", k, n, n-limit)
		}
	}
	returned := int64(0)
	for _, n := range left() {
		returned += n
	}
	utilised := float64(admitted) / float64(leaseKeys*limit)
	t.Logf("%d processes, %d killed and as many stopped, %d ended: %d admitted of %d, %.4f, %d given back at the end, so %d lost, %d for each kill; %d by leases of those that ended; %d errors",
		started, killed, ended, admitted, leaseKeys*limit, utilised, returned, leaseKeys*limit-admitted-returned, (leaseKeys*limit-admitted-returned)/int64(killed), atomic.LoadInt64(entry(book, leaseKeys)), atomic.LoadInt64(entry(book, leaseKeys+1)))
	if utilised < 0.98 || atomic.LoadInt64(entry(book, leaseKeys)) == 0 {
		t.Errorf("%.4f of the limits were admitted", utilised)
	}
}
