package audit

import (
	"context"
	"sync"
	"time"
)

// pace spreads checks evenly over time, whoever makes them. What was not made in
// its time, because no caller was free, is not made up for.
type pace struct {
	each float64 // ns between checks; 0: no pace
	mu   struct {
		sync.Mutex
		next float64 // ns since start
	}
	start time.Time
}

func newPace(rate float64) *pace {
	p := &pace{start: time.Now()}
	if rate > 0 {
		p.each = float64(time.Second) / rate
	}
	return p
}

// wait returns when n checks may be made; it reports whether ctx still goes on then.
func (p *pace) wait(ctx context.Context, n int) bool {
	if p.each == 0 {
		return ctx.Err() == nil
	}
	return rest(ctx, p.reserve(n))
}

func (p *pace) reserve(n int) time.Duration {
	now := float64(time.Since(p.start))
	p.mu.Lock()
	defer p.mu.Unlock()
	at := max(now, p.mu.next)
	p.mu.next = at + float64(n)*p.each
	return time.Duration(at - now)
}

// rest waits for d, or until ctx ends, and reports whether ctx still goes on.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
