package peer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
)

// syncing returns records that wait for a copy.
func syncing(costs ...int64) []check.Record {
	records := costing(costs...)
	for i := range records {
		records[i].Sync = true
	}
	return records
}

// TestSyncStandsApart: a handler that blocks on sync records delays answers to sync records only, which come
// in order.
func TestSyncStandsApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network, b := newNetwork(), newGate()
		var mu sync.Mutex
		var order []int64
		network.serve(t, "b:1", network.config("b"), handlerFunc(func(from string, records []check.Record, replies []check.Reply) {
			if !records[0].Sync {
				echo(from, records, replies)
				return
			}
			mu.Lock()
			for _, r := range records {
				order = append(order, r.Cost)
			}
			mu.Unlock()
			b.Serve(from, records, replies)
		}))
		t.Cleanup(b.open)
		pool := open(t, network.config("a"))
		results := make(chan error, 3)
		for i := range int64(3) {
			go func() {
				replies := make([]check.Reply, 1)
				err := pool.Call(t.Context(), "b:1", syncing(i+1), replies)
				if err == nil && replies[0].Remaining != i+1 {
					err = errors.New("wrong echo")
				}
				results <- err
			}()
			if i == 0 {
				<-b.arrived
			}
			synctest.Wait()
		}
		start := time.Now()
		for i := range int64(10) {
			if err := ask(t.Context(), pool, "b:1", i); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("other records waited %v", took)
		}
		if s := pool.Stats(); s.Peers != 1 || s.Waiting != 1 || s.Frames != 12 || s.Records != 12 || s.Dialled != 2 {
			t.Errorf("%+v", s)
		}
		for i := range 3 {
			b.pass <- 1
			if i < 2 {
				<-b.arrived
			}
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(order, []int64{1, 2, 3}) {
			t.Errorf("served in the order %v", order)
		}
	})
}

// TestSyncEnds: Retain ends both streams.
func TestSyncEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, server, pool := pair(t, handlerFunc(echo))
		for _, records := range [][]check.Record{costing(1), syncing(1)} {
			if err := pool.Call(context.Background(), "b:1", records, make([]check.Reply, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if n := server.Stats().Streams; n != 2 {
			t.Errorf("%d streams, want 2", n)
		}
		pool.Retain(nil)
		synctest.Wait()
		if n := server.Stats().Streams; n != 0 {
			t.Errorf("%d streams are left", n)
		}
	})
}
