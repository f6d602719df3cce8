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

// load asks nodes for these requests, all at once, again and again, and counts what is
// admitted by owners.
type load struct {
	admitted []atomic.Int64 // by request
	apart    atomic.Int64   // admitted without an owner
	answers  atomic.Int64
	stop     atomic.Bool
	all      sync.WaitGroup
}

// ask begins to ask n.
func (l *load) ask(n *runningNode, requests []check.Request) {
	if l.admitted == nil {
		l.admitted = make([]atomic.Int64, len(requests))
	}
	l.all.Go(func() {
		for i := 0; !l.stop.Load(); i++ {
			at := i * 7 % len(requests)
			batch := append(slices.Clone(requests[at:]), requests[:at]...)
			for j, a := range decide(context.Background(), n.Node, batch[:1+i%len(batch)]...) {
				l.answers.Add(1)
				switch {
				case !a.Allowed:
				case a.Source == check.Owned || a.Source == check.Forwarded:
					l.admitted[(at+j)%len(requests)].Add(1)
				default:
					l.apart.Add(1)
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func (l *load) end() {
	l.stop.Store(true)
	l.all.Wait()
}

// requests are checks of cost 1 of n different keys.
func requests(n int, limits *bucket.Limits) []check.Request {
	list := make([]check.Request, n)
	for i := range list {
		list[i].Request = bucket.Request{Key: bucket.Key{Hi: 7, Lo: uint64(i)}, Limits: limits, Cost: 1}
	}
	return list
}
