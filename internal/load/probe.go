package load

import (
	"context"
	"errors"
	"fmt"
)

// ErrNobody means that no node gave a decision.
var ErrNobody = errors.New("no node answers")

// Probe asks each node once, about keys that the load leaves alone, and returns an
// error that wraps ErrNobody and says why if none of them decides a check. The other
// nodes' errors are left to the load, which may be put on a cluster that is partly down.
func Probe(ctx context.Context, target Target, prefix string, checks int) error {
	keys := make([]string, checks)
	for i := range keys {
		keys[i] = fmt.Sprintf("%sprobe%d", prefix, i)
	}
	var errs []error
	for node := range target.Nodes() {
		var seen Tally
		err := target.NewCaller(checks).Call(ctx, node, keys, &seen)
		if err == nil {
			if seen.Failed == 0 || seen.Decided() != (Decided{}) {
				return nil
			}
			err = seen.FirstError
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("%w: %w", ErrNobody, errors.Join(errs...))
}
