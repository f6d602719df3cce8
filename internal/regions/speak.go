package regions

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/transport/peer"
)

// speak sends what Post got until ctx ends, the urgent before others. With urgent nil it makes a connection when there is something to be
// sent, which takes some round trips; else it keeps one. Speakers of different numbers prefer different nodes. What is lost is sent again
// by those who have posted it.
func (r *region) speak(ctx context.Context, l *Links, number int, urgent, posts <-chan *message.RegionMessages) {
	var avoids time.Time // until then it prefers another node
	var rest time.Duration
	prefers := func() string {
		if time.Now().Before(avoids) {
			return l.Addr(r.name, number+1)
		}
		return l.Addr(r.name, number)
	}
	for ctx.Err() == nil {
		first, wait := (*message.RegionMessages)(nil), (<-chan time.Time)(nil)
		if urgent != nil {
			wait = time.After(every)
		}
		select {
		case <-ctx.Done():
			return
		case first = <-urgent:
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
			answered, err = r.send(ctx, t, within, first, urgent, posts, func() bool { return prefers() == addr })
			if t.Close(); answered {
				rest = 0
			}
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		r.log.Debug("messages about regions were lost", "error", err)
		if avoids = time.Now().Add(avoidFor); addr != l.Addr(r.name, number) {
			avoids = time.Time{}
		}
		rest = min(max(2*rest, leastPause), every)
		pause.For(ctx, rest/2+rand.N(rest)/2) // #nosec G404 -- so that not all nodes connect at once
	}
}

// errNoResponse: a message had no response in time.
var errNoResponse = errors.New("no response in time")

// send sends first, unless it is nil, and what Post got, until a response does not arrive within that time, or the connection fails, is idle and
// not kept, or does not stay, or ctx ends. While a response is late, another connection takes what Post got. answered: there was a response.
func (r *region) send(ctx context.Context, t *peer.Talk, within time.Duration, first *message.RegionMessages, urgent, posts <-chan *message.RegionMessages, stays func() bool) (answered bool, err error) {
	keeps := urgent != nil
	ctx, fail := context.WithCancelCause(ctx)
	var sent []time.Time // of messages without a response
	arrived := make(chan struct{}, window)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer fail(nil)
	receiver.Go(func() {
		for {
			if _, err := t.Receive(ctx); err != nil {
				fail(err)
				return
			}
			select {
			case arrived <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	})
	received := func() {
		answered = true
		if len(sent) > 0 { // a node may send what nobody has asked for
			sent = append(sent[:0], sent[1:]...)
		}
	}
	last := time.Now()
	for m := first; ; {
		if m != nil {
			last = time.Now()
			sent = append(sent, last)
			asking, cancel := context.WithDeadline(ctx, last.Add(within))
			err := t.Send(asking, m)
			if cancel(); err != nil {
				return answered, err
			}
			m = nil
		}
		for len(arrived) > 0 {
			<-arrived
			received()
		}
		age, late := time.Duration(0), 2*time.Duration(r.rtt.Load())+200*time.Millisecond
		before, from, wait := urgent, posts, every
		if len(sent) > 0 {
			age = time.Since(sent[0])
		}
		switch {
		case age >= within:
			return answered, errNoResponse
		case len(sent) >= window || keeps && age >= late:
			before, from, wait = nil, nil, within-age
		case keeps && len(sent) > 0:
			wait = min(wait, late-age)
		}
		select {
		case m = <-before:
			continue
		default:
		}
		select {
		case <-ctx.Done():
			return answered, context.Cause(ctx)
		case m = <-before:
		case m = <-from:
		case <-arrived:
			received()
		case <-time.After(wait):
			if len(sent) == 0 && (!stays() || !keeps && time.Since(last) >= idleTimeout) {
				return answered, nil
			}
		}
	}
}
