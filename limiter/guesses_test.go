package limiter

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
)

// TestParallelGuesses: under the example's rule of three failures, with a check before each attempt and a refund after a
// success, a hundred attempts at once are three guesses, and a success makes room at once.
func TestParallelGuesses(t *testing.T) {
	data, err := os.ReadFile("../examples/rules/payments.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := newScript(t, string(data))
	send := func(card string, v bucket.Verb) bool {
		b := NewBatch()
		defer b.Release()
		all(domain("payments"), entry("card", card), verb(v))(b.Add())
		if err := s.Check(t.Context(), b); err != nil || b.Results[0].Err != nil || b.Results[0].DeniedFor != 0 {
			t.Errorf("%v, %+v", err, b.Results)
		}
		return b.Results[0].Allowed
	}
	var guesses atomic.Int32
	var attempts sync.WaitGroup
	for range 100 {
		attempts.Go(func() {
			if send("guessed", bucket.Check) {
				guesses.Add(1) // wrong: no refund
			}
		})
	}
	attempts.Wait()
	if n := guesses.Load(); n != 3 {
		t.Errorf("%d guesses, want 3", n)
	}
	s.play(strings.Repeat("card=known | card=known refund => allowed 2/3 | allowed 3/3\n", 10))
	for i, want := range []bool{true, true, true, false} {
		if send("known", bucket.Check) != want {
			t.Errorf("after successes, failure %d: allowed %v", i, !want)
		}
	}
}
