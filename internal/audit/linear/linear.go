// Package linear checks whether the log of one key is linearizable: whether there is an order
// in which one counter, deciding each check at some moment between its sending and its answer, gives
// exactly the answers of the log.
//
// It knows a limit of N that nothing comes back of while the log goes on: a fixed window aligned to the first hit, or
// any algorithm with a period that is long against the log. An attempt without an answer may have been charged at
// any time after it was sent, or never. Counting what a limit admits over time is left to package
// audit/model; the search for an order to porcupine. It is for tests: the search can take very long.
package linear

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluice-project/sluice/internal/audit"
)

// answer is what a check was told.
type answer uint8

const (
	allowed answer = iota
	denied
	// unknown: nobody was told; it may have been charged.
	unknown
)

// Check says whether the checks, all of one key with a limit of count, are linearizable. Answers
// that no owner gave (shares, for example) are left out: they are counted elsewhere. The error says that the
// search took longer than within, or that the log holds several keys.
func Check(checks []audit.Check, count int, within time.Duration) (bool, error) {
	history, err := historyOf(checks)
	if err != nil {
		return false, err
	}
	switch porcupine.CheckOperationsTimeout(counter(count), history, within) {
	case porcupine.Ok:
		return true, nil
	case porcupine.Illegal:
		return false, nil
	}
	return false, fmt.Errorf("no order of %d operations was found or ruled out within %v", len(history), within)
}

// historyOf returns one operation for each answer of an owner, and one for each attempt without any.
func historyOf(checks []audit.Check) (history []porcupine.Operation, err error) {
	for _, c := range checks {
		if c.Key != checks[0].Key {
			return nil, fmt.Errorf("checks of %q and %q: give those of one key", checks[0].Key, c.Key)
		}
		for range c.Ambiguous {
			// At the end it changes nothing, which is as good as never.
			history = append(history, porcupine.Operation{ClientId: 0, Output: unknown, Call: c.First, Return: math.MaxInt64})
		}
		if c.Source != "held" && c.Source != "forwarded" {
			continue
		}
		op := porcupine.Operation{Output: denied, Call: c.Sent, Return: c.Answered}
		if c.Decision == "allowed" {
			op.Output = allowed
		}
		history = append(history, op)
	}
	return history, nil
}

// counter is a counter from which count units can be taken. Its state is how many were.
func counter(count int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, _, output any) (bool, any) {
			taken := state.(int)
			switch full := taken >= count; output.(answer) {
			case allowed:
				return !full, taken + 1
			case denied:
				return full, taken
			default: // as much as is there
				return true, min(count, taken+1)
			}
		},
	}
}
