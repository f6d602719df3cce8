package node

import (
	"context"
	"errors"
)

// Reload reads all files that are followed now instead of at their next reading, and logs which of them have changed. It waits for
// Run to begin, and for ctx.
func (n *Node) Reload(ctx context.Context) {
	type followed struct {
		label string
		files interface {
			Reload(context.Context) (changed bool, err error)
		}
	}
	var all []followed
	for _, s := range n.secrets { // first: rules name regions
		all = append(all, followed{s.label, s.files})
	}
	if n.rules != nil {
		all = append(all, followed{"rules", n.rules})
	}
	var changed, unchanged, invalid []string
	var errs []error
	for _, f := range all {
		is, err := f.files.Reload(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			invalid, errs = append(invalid, f.label), append(errs, err)
		case is:
			changed = append(changed, f.label)
		default:
			unchanged = append(unchanged, f.label)
		}
	}
	facts := []any{"changed", changed, "unchanged", unchanged}
	if invalid != nil {
		n.log.Error("reloaded, but some files are invalid; their contents in force stay", append(facts, "invalid", invalid, "error", errors.Join(errs...))...)
		return
	}
	n.log.Info("reloaded", facts...)
}
