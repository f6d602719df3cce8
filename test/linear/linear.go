// Package linear checks whether the log of one key is linearizable: whether there is an order in which one counter,
// deciding each check at some moment between its sending and its answer, gives exactly the decisions of the log.
//
// It models a limit of N without a refill during the log: a fixed window aligned to the first hit, or any algorithm with a
// period much longer than the log. An attempt without an answer may have been charged at any time after it was sent, or
// never. Porcupine searches for the order. It is for tests: the search can take very long.
package linear

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluicecluster/sluice/internal/audit"
)

// answer is the output of a check.
type answer uint8

const (
	allowed answer = iota
	denied
	unknown // no answer; it may have been charged
)

// Check reports whether the checks, all of one key with a limit of count, are linearizable. It skips decisions of others
// than owners, for example shares. The error says that the search took longer than within, or that the log has several keys.
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
			// At the end it is equivalent to never.
			history = append(history, porcupine.Operation{ClientId: 0, Output: unknown, Call: c.First, Return: math.MaxInt64})
		}
		if c.Source != "owned" && c.Source != "forwarded" {
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
