package system

import (
	"errors"
	"testing"

	"github.com/sluicecluster/sluice/internal/load"
)

// Both limiters on Redis admit the burst of each key, and no more.
func TestRedisLimiters(t *testing.T) {
	at, err := addrs(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &System{}
	t.Cleanup(s.Stop)
	if err := s.startRedis(t.Context(), &Binaries{scratch: t.TempDir()}, at[0]); errors.Is(err, ErrNoRedis) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{RedisRate, Rueidis} {
		c, err := openRedis(name, at[0], 3)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		for _, key := range []string{"a", "b"} {
			var seen load.Counts
			if err := c.NewCaller(5).Call(t.Context(), 0, []string{key, key, key, key, key}, &seen); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := seen.By[load.Owned]; got != (load.Decided{Allowed: 3, Denied: 2}) {
				t.Errorf("%s: %+v of 5 checks", name, got)
			}
		}
	}
}
