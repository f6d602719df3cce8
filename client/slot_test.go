package sluice

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// slotBook is what fake nodes know of sessions: which of them owns all keys, and whether they answer heartbeats. A request for 2 units is never
// answered, one for 3 is denied.
type slotBook struct {
	sync.Mutex
	owner    string
	mute     bool
	sessions int
	beats    []time.Time // answered ones, by when they came
	resumed  []string
	released int
	waited   []int64 // waited_ns of the requests at the owner
	also     int     // further checks of the last one
	late     int     // so many requests for 5 units are answered when it is too late
	open     int     // requests for 2 units
	end      chan struct{}
}

func (n *fakeNode) Session(s grpc.BidiStreamingServer[sluicev1.SessionRequest, sluicev1.SessionResponse]) error {
	b := &n.cluster.slots
	b.Lock()
	b.sessions++
	if b.end == nil {
		b.end = make(chan struct{})
	}
	end := b.end
	b.Unlock()
	over := make(chan error, 1)
	go func() {
		for {
			req, err := s.Recv()
			if err != nil {
				over <- err
				return
			}
			b.Lock()
			res := new(sluicev1.SessionResponse)
			for _, r := range req.GetAcquire() {
				a := &sluicev1.SlotResponse{Number: r.GetNumber()}
				switch {
				case n.name != b.owner:
					a.Moved, a.Owner, a.Waited = true, b.owner, true
				case r.GetUnits() == 2:
					b.open++
					continue
				case r.GetUnits() == 3:
					a.Decision = &sluicev1.Decision{Verdict: sluicev1.Verdict_VERDICT_DENIED, RetryAfterNs: new(int64(time.Second))}
				case r.GetCheck().GetDomain() == "full":
					a.Decision = full()
				case r.GetCheck().GetDomain() == "other":
					a.Decision = unmatched()
				case r.GetUnits() == 4:
					a.Error = &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_INVALID, Field: "units"}
				default:
					a.Decision = &sluicev1.Decision{Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED}
					if r.GetCheck().GetDomain() == "strict" {
						a.Decision.Rule, a.Decision.OnFailure = "strict/k", sluicev1.OnFailure_ON_FAILURE_CLOSED
					}
					a.Reservation, a.Fence, a.ExpiresAfterNs = "slot", 7, int64(2*time.Second)
					if r.GetUnits() == 5 && b.late > 0 {
						b.late--
						a.ExpiresAfterNs = 1
						b.Unlock()
						time.Sleep(time.Millisecond)
						b.Lock()
					}
				}
				if !a.Moved {
					b.waited, b.also = append(b.waited, r.GetWaitedNs()), len(r.GetAlso())
				}
				res.Slots = append(res.Slots, a)
			}
			for _, h := range req.GetResume() {
				b.resumed = append(b.resumed, n.name+" "+h.GetReservation())
			}
			b.released += len(req.GetRelease())
			if !b.mute && req.GetHeartbeat() > 0 {
				res.Heartbeat, res.ExpiresAfterNs = req.GetHeartbeat(), int64(2*time.Second)
				b.beats = append(b.beats, time.Now())
			}
			b.Unlock()
			if err := s.Send(res); err != nil {
				over <- err
				return
			}
		}
	}()
	select {
	case err := <-over:
		return err
	case <-end:
		return errors.New("the node ends it")
	}
}

func TestAcquire(t *testing.T) {
	inBubble(t, "n1 n2 n3", func(t *testing.T, f *fakeCluster) {
		f.slots.owner = "n2"
		c := f.dial()
		f.known(c)
		key := c.Key("jobs", "queue", "q")
		x, err := c.Acquire(t.Context(), AcquireRequest{Key: key})
		if err != nil || !x.Allowed || x.ID != "slot" || x.Fence != 7 || x.Context().Err() != nil {
			t.Fatalf("%+v %v", x, err)
		}
		if owner, _ := c.owners.Peek(x.key); owner.name != "n2" {
			t.Errorf("the owner is %q", owner.name)
		}
		if x, err := c.Acquire(t.Context(), AcquireRequest{Key: key, With: []Key{key, key}}); err != nil || !x.Allowed || f.slots.also != 2 {
			t.Errorf("with others: %+v %v", x, err)
		}
		// This process sleeps until its slot has ended.
		f.slots.late = 2
		if x, err := c.Acquire(t.Context(), AcquireRequest{Key: key, Units: 5}); err != nil || !x.Allowed || x.Context().Err() != nil || f.slots.late != 0 {
			t.Errorf("too late: %+v %v", x, err)
		}
		// A denial, an error, and waits that end.
		if x, err := c.Acquire(t.Context(), AcquireRequest{Key: key, Units: 3, MaxWait: -1}); !errors.Is(err, ErrDenied) || x.Allowed || x.RetryAfter != time.Second {
			t.Errorf("%+v %v", x, err)
		}
		if _, err := c.Acquire(t.Context(), AcquireRequest{Key: key, Units: 4}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if x, err := c.Acquire(t.Context(), AcquireRequest{Key: key, Units: 2, MaxWait: 200 * time.Millisecond}); !errors.Is(err, ErrDenied) || x.Allowed {
			t.Errorf("%+v %v", x, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.Acquire(ctx, AcquireRequest{Key: key, Units: 2})
			ended <- err
		}()
		waitFor(t, "a request that waits", func() bool { f.slots.Lock(); defer f.slots.Unlock(); return f.slots.open == 2 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := c.Acquire(t.Context(), AcquireRequest{Key: c.Key("jobs", "odd")}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if _, err := c.Acquire(t.Context(), AcquireRequest{Key: key, Tenant: "\xff"}); !errors.Is(err, ErrInvalid) || !x.Allowed || x.Context().Err() != nil {
			t.Errorf("a tenant that is not UTF-8: %v", err)
		}
		d, held, release, err := c.InFlight(t.Context(), key.Spend(1), 0)
		if err != nil || !d.Allowed || held.Err() != nil {
			t.Fatal(d, err)
		}
		release()
		release()
		if held.Err() == nil {
			t.Error("the slot's context goes on")
		}
		if d, _, _, err := c.InFlight(t.Context(), key.Spend(3), time.Second); err != nil || d.Allowed {
			t.Error(d, err)
		}
		x.Release()
		waitFor(t, "two releases, two cancellations, and two slots that came too late", func() bool { f.slots.Lock(); defer f.slots.Unlock(); return f.slots.released == 6 })
		unrouted := f.dial(WithoutRouting())
		f.slots.Lock()
		f.slots.owner = "somebody else"
		f.slots.Unlock()
		if _, err := unrouted.Acquire(t.Context(), AcquireRequest{Key: unrouted.Key("jobs", "queue", "q")}); !errors.Is(err, limit.ErrUnsupported) {
			t.Error(err)
		}
		c.Close()
		if _, err := c.Acquire(t.Context(), AcquireRequest{Key: key}); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// What is held by the other side of a partition is given away only after its user has stopped: a caller whose heartbeats are not answered
// stops before two seconds have passed since the last one that was, whatever it tries meanwhile.
func TestTrap15_CallersStopInTime(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		f.slots.owner = "n1"
		c := f.dial()
		f.known(c)
		x, err := c.Acquire(t.Context(), AcquireRequest{Key: c.Key("jobs", "queue", "q")})
		do(t, err)
		waitFor(t, "heartbeats for longer than the slot lasts alone", func() bool { f.slots.Lock(); defer f.slots.Unlock(); return len(f.slots.beats) > 6 })
		if x.Context().Err() != nil {
			t.Fatal("the slot ended beside heartbeats")
		}
		// The session ends: the slot is resumed at the other node.
		f.slots.Lock()
		close(f.slots.end)
		f.slots.end = nil
		f.slots.Unlock()
		waitFor(t, "the slot resumed", func() bool {
			f.slots.Lock()
			defer f.slots.Unlock()
			return slices.ContainsFunc(f.slots.resumed, func(s string) bool { return strings.HasSuffix(s, "slot") })
		})
		f.slots.Lock()
		f.slots.mute = true
		last := f.slots.beats[len(f.slots.beats)-1]
		f.slots.Unlock()
		<-x.Context().Done()
		if took := time.Since(last); took > 2*time.Second {
			t.Errorf("the slot ended %v after the last heartbeat that was answered had come", took)
		}
		if !errors.Is(context.Cause(x.Context()), ErrSlotLost) {
			t.Error(context.Cause(x.Context()))
		}
		x.Release()
	})
}
