package inflow

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// take takes n bytes that must be free.
func take(t *testing.T, m *Memory, n int64, c *pool) Held {
	t.Helper()
	h, err := m.take(t.Context(), n, "", c)
	if err != nil {
		t.Fatalf("%d bytes: %v", n, err)
	}
	return h
}

func TestMemoryIsLimited(t *testing.T) {
	for _, c := range []struct{ limit, most int64 }{{100 * mib, 20 * mib}, {256 * mib, mostDecoded}, {64 << 30, mostDecoded}} {
		m := NewMemory(c.limit)
		if m.most != c.most {
			t.Errorf("of %d MiB one message may take %d, want %d", c.limit/mib, m.most, c.most)
		}
		if all := m.small.size + max(m.large.size, m.most) + m.bodies.size; all > c.limit*3/10 {
			t.Errorf("of %d MiB all messages may take %d", c.limit/mib, all)
		}
	}
	m := NewMemory(100 * mib)
	_, err := m.Take(t.Context(), 20*mib+1, "checks[7]")
	if large, ok := errors.AsType[*TooLarge](err); !ok || large.Field != "checks[7]" || !strings.HasPrefix(err.Error(), "checks[7]: ") || !strings.Contains(err.Error(), "20 MiB") {
		t.Errorf("%v", err)
	}
	for _, all := range []*Memory{m, nil} {
		for range 1000 {
			h, err := all.Take(t.Context(), 20*mib, "")
			if err != nil {
				t.Fatal(err)
			}
			h.Release()
			h.Release() // once
		}
	}
}

// Messages wait in order, small ones beside large ones, and those that have gone let the next one
// in.
func TestMemoryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(100 * mib)
		first := take(t, m, 8*mib, nil) // of 12.5
		began, order := time.Now(), make(chan string, 3)
		wait := func(name string, ctx context.Context, n int64) {
			go func() {
				h, err := m.Take(ctx, n, "")
				if err != nil {
					name += ": " + err.Error()
				}
				order <- name
				h.Release()
			}()
			synctest.Wait()
		}
		gone, cancel := context.WithCancel(t.Context())
		wait("gone", gone, 20*mib)
		wait("late", t.Context(), 20*mib)
		time.Sleep(time.Second)
		wait("behind", t.Context(), 3*mib) // has room, and must not pass
		small := take(t, m, mib/2, nil)
		cancel()
		if got := <-order; got != "gone: context canceled" {
			t.Errorf("%q", got)
		}
		if got := <-order; got != "late: "+ErrNoMemory.Error() || time.Since(began) != memoryWait {
			t.Errorf("%q after %v", got, time.Since(began))
		}
		if got := <-order; got != "behind" {
			t.Errorf("%q", got)
		}
		first.Release()
		small.Release()
		whole := take(t, m, 20*mib, nil)
		whole.Release()
	})
}

// Messages of one connection wait for each other, and take nothing from others meanwhile.
func TestMemoryOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, c := NewMemory(1<<30), new(newPool(mostDecoded))
		first := take(t, m, 20*mib, c)
		done := make(chan Held)
		go func() {
			h, _ := m.take(t.Context(), 20*mib, "", c)
			done <- h
		}()
		synctest.Wait()
		if free := m.large.free; free != 1<<30/8-20*mib {
			t.Errorf("%d MiB are free", free/mib)
		}
		other := take(t, m, 30*mib, new(newPool(mostDecoded)))
		first.Release()
		second := <-done
		second.Release()
		other.Release()
		if m.large.free != 1<<30/8 || c.free != mostDecoded {
			t.Errorf("%d and %d bytes are free", m.large.free, c.free)
		}
	})
}

// No more wait than may: their bytes may not be counted.
func TestMemoryIsQueuedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(64 * mib)
		first := take(t, m, 8*mib, nil)
		done := make(chan error)
		for range mostWaiting {
			go func() {
				h, err := m.Take(t.Context(), 2*mib, "")
				h.Release()
				done <- err
			}()
		}
		synctest.Wait()
		if _, err := m.Take(t.Context(), 2*mib, ""); !errors.Is(err, ErrNoMemory) {
			t.Errorf("one too many: %v", err)
		}
		if h, err := m.Take(t.Context(), littleMemory, ""); err != nil || h != (Held{}) {
			t.Errorf("a little: %v, %v", h, err)
		}
		first.Release()
		for range mostWaiting {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestMemoryOfBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(64 * mib)
		small, err := m.Body(t.Context(), SmallBody)
		if err != nil || small != (Held{}) {
			t.Errorf("a small body: %v, %v", small, err)
		}
		large, err := m.Body(t.Context(), 4*mib)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Body(t.Context(), mib); !errors.Is(err, ErrNoMemory) {
			t.Errorf("one too many: %v", err)
		}
		large.Release()
	})
}
