package cluster

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// load asks nodes for these requests, all at once, again and again, and counts what is admitted.
type load struct {
	stop atomic.Bool
	all  sync.WaitGroup

	mu       sync.Mutex
	admitted []int64                // by owners, of each request
	windows  map[int64]int64        // by the end of the window
	sources  map[check.Source]int64 // by who admitted it
	oldest   time.Duration          // what an answer was based on
	answers  int
}

// ask begins to ask n, each millisecond.
func (l *load) ask(n *Node, requests []check.Request) {
	if l.admitted == nil {
		l.admitted, l.windows, l.sources = make([]int64, len(requests)), make(map[int64]int64), make(map[check.Source]int64)
	}
	l.all.Go(func() {
		for i := 0; !l.stop.Load(); i++ {
			at := i * 7 % len(requests)
			batch := append(slices.Clone(requests[at:]), requests[:at]...)
			ends := batch[0].Limits.WindowEnd(n.cfg.Clock())
			answers := decide(context.Background(), n, batch[:1+i%len(batch)]...)
			l.mu.Lock()
			for j, a := range answers {
				l.answers++
				if !a.Allowed {
					continue
				}
				l.windows[ends]++
				l.sources[a.Source]++
				l.oldest = max(l.oldest, a.Age)
				if a.Source == check.Owned || a.Source == check.Forwarded {
					l.admitted[(at+j)%len(requests)]++
				}
			}
			l.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
	})
}

// soFar returns what was admitted of each request so far, and how much without an owner.
func (l *load) soFar() (admitted []int64, apart int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s, n := range l.sources {
		if s != check.Owned && s != check.Forwarded {
			apart += n
		}
	}
	return slices.Clone(l.admitted), apart
}

// end ends all asking, and returns soFar.
func (l *load) end() (admitted []int64, apart int64) {
	l.stop.Store(true)
	l.all.Wait()
	return l.soFar()
}

// requests are checks of cost 1 of n different keys.
func requests(n int, limits *bucket.Limits) []check.Request {
	list := make([]check.Request, n)
	for i := range list {
		list[i].Request = bucket.Request{Key: bucket.Key{Hi: 7, Lo: uint64(i)}, Limits: limits, Cost: 1}
	}
	return list
}
