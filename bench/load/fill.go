package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Fill asks for every key once, in order, so that what comes after finds
// counters. Calls have batch checks and go round the nodes.
func Fill(ctx context.Context, target Target, domain string, keys *Keys, callers, batch int) (Tally, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		next atomic.Int64
		work sync.WaitGroup
		mu   sync.Mutex
		sum  Tally
	)
	for range callers {
		work.Go(func() {
			caller := target.NewCaller(domain, batch)
			names := make([]string, batch)
			var seen Tally
			for {
				from := next.Add(int64(batch)) - int64(batch)
				if from >= int64(keys.Len()) || ctx.Err() != nil {
					break
				}
				for i := range names {
					// The last call asks for the last key again to be full.
					names[i] = keys.At(uint32(min(from+int64(i), int64(keys.Len()-1))))
				}
				node := int(from/int64(batch)) % target.Nodes()
				if err := caller.Call(ctx, node, names, &seen); err != nil {
					cancel(fmt.Errorf("filling: %w", err))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(&seen)
		})
	}
	work.Wait()
	return sum, context.Cause(ctx)
}
