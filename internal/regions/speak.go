package regions

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/transport/peer"
)

// speak sends what Post got until ctx ends, over a connection that it keeps, or else makes when there is something to be sent: that takes
// some round trips. Speakers of different numbers prefer different nodes. What is lost is sent again by those who have posted it.
func (r *region) speak(ctx context.Context, l *Links, number int, posts <-chan *message.RegionMessages, keeps bool) {
	var avoids time.Time // until then it prefers another node
	var pause time.Duration
	prefers := func() string {
		if time.Now().Before(avoids) {
			return l.Addr(r.name, number+1)
		}
		return l.Addr(r.name, number)
	}
	for ctx.Err() == nil {
		first, wait := (*message.RegionMessages)(nil), (<-chan time.Time)(nil)
		if keeps {
			wait = time.After(every)
		}
		select {
		case <-ctx.Done():
			return
		case first = <-posts:
		case <-wait:
		}
		addr := prefers()
		if addr == "" {
			continue
		}
		within := max(answerTimeout, 4*l.RTT(r.name))
		dialing, cancel := context.WithTimeout(ctx, within)
		t, err := r.cfg.Pool.Talk(dialing, addr)
		if cancel(); err == nil {
			var answered bool
			answered, err = r.send(ctx, t, within, first, posts, keeps, func() bool { return prefers() == addr })
			if t.Close(); answered {
				pause = 0
			}
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		r.log.Debug("messages about regions were lost", "error", err)
		if avoids = time.Now().Add(avoidFor); addr != l.Addr(r.name, number) {
			avoids = time.Time{}
		}
		pause = min(max(2*pause, leastPause), every)
		jitter := rand.N(pause) / 2 // #nosec G404 -- so that not all nodes connect at once
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + jitter):
		}
	}
}

// unanswered has the times of the requests of a connection that have no response yet.
type unanswered struct {
	mu   sync.Mutex
	sent []time.Time
}

func (u *unanswered) add(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent = append(u.sent, now)
}

func (u *unanswered) removeOldest() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.sent) > 0 { // a node may send what nobody has asked for
		u.sent = append(u.sent[:0], u.sent[1:]...)
	}
}

// oldest returns how long the oldest has been without response, and how many are.
func (u *unanswered) oldest() (age time.Duration, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n = len(u.sent); n > 0 {
		age = time.Since(u.sent[0])
	}
	return age, n
}

// errNoResponse: a message had no response in time.
var errNoResponse = errors.New("no response in time")

// send sends first, unless it is nil, and what Post got, until a response does not arrive within that time, or the connection fails, is idle and
// not kept, or does not stay, or ctx ends. While a response is late, another connection takes what Post got. answered: there was a response.
func (r *region) send(ctx context.Context, t *peer.Talk, within time.Duration, first *message.RegionMessages, posts <-chan *message.RegionMessages, keeps bool, stays func() bool) (answered bool, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	var open unanswered
	arrived := make(chan struct{}, 1)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer fail(nil)
	receiver.Go(func() {
		for {
			if _, err := t.Receive(ctx); err != nil {
				fail(err)
				return
			}
			open.removeOldest()
			select {
			case arrived <- struct{}{}:
			default:
			}
		}
	})
	last := time.Now()
	for m := first; ; {
		if m != nil {
			last = time.Now()
			open.add(last)
			asking, cancel := context.WithDeadline(ctx, last.Add(within))
			err := t.Send(asking, m)
			if cancel(); err != nil {
				return answered, err
			}
			m = nil
		}
		from, wait := posts, every
		late := 2*time.Duration(r.rtt.Load()) + 200*time.Millisecond
		switch age, n := open.oldest(); {
		case age >= within:
			return answered, errNoResponse
		case n >= window || keeps && age >= late:
			from, wait = nil, within-age
		case keeps && n > 0:
			wait = min(wait, late-age)
		}
		select {
		case <-ctx.Done():
			return answered, context.Cause(ctx)
		case m = <-from:
		case <-arrived:
			answered = true
		case <-time.After(wait):
			if _, n := open.oldest(); n == 0 && (!stays() || !keeps && time.Since(last) >= idleTimeout) {
				return answered, nil
			}
		}
	}
}
