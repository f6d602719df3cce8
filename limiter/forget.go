package limiter

import (
	"context"
	"errors"
	"fmt"
)

// Why a member is not forgotten: what Config.Forget returns, alone or wrapped with more.
var (
	// ErrNotCounted: nobody in the stable set has that name.
	ErrNotCounted = &Error{Code: NotFound, Message: "it is not in the stable set"}
	// ErrLives: the member is heard from, so it cannot be gone.
	ErrLives = &Error{Code: Refused, Message: "it lives; stop it first"}
	// ErrThisNode: the name is that of the node that was asked.
	ErrThisNode = &Error{Code: Refused, Message: "it is the node that was asked; stop it, and ask another"}
	// ErrLastCounted: nobody would be left to count.
	ErrLastCounted = &Error{Code: Refused, Message: "nobody else is in the stable set"}
	// ErrNoSet: the node knows no stable set.
	ErrNoSet = &Error{Code: Refused, Message: "this node knows no stable set; ask one that does"}
)

// ErrHasQuorum is why a node founds no voter set by hand: what Config.Bootstrap returns.
var ErrHasQuorum = &Error{Code: Refused, Message: "this node has quorum in its voter set, so nothing has to be founded"}

// Bootstrap implements Service.
func (s *Limiter) Bootstrap(ctx context.Context) (StableSet, error) {
	if s.config.Bootstrap == nil {
		return StableSet{}, ErrHasQuorum
	}
	switch err := s.config.Bootstrap(ctx); {
	case err == nil:
		return s.config.Cluster(ctx).Set, nil
	case errors.Is(err, ErrHasQuorum):
		return StableSet{}, ErrHasQuorum
	default:
		return StableSet{}, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot bootstrap: %v", err)}
	}
}

// AcceptLoss implements Service.
func (s *Limiter) AcceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	if s.config.AcceptLoss == nil {
		return 0, nil, nil
	}
	if partitions, told, err = s.config.AcceptLoss(ctx); err != nil {
		return 0, nil, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot accept the loss: %v", err)}
	}
	return partitions, told, nil
}

// Forget implements Service.
func (s *Limiter) Forget(ctx context.Context, name string) (StableSet, error) {
	if fault := textFault(name, false); fault != "" {
		return StableSet{}, &Error{Code: Invalid, Field: "name", Message: fault}
	}
	var err error = ErrNoSet
	if s.config.Forget != nil {
		err = s.config.Forget(ctx, name)
	}
	if err == nil {
		return s.config.Cluster(ctx).Set, nil
	}
	code := Unavailable
	if e, ok := errors.AsType[*Error](err); ok {
		code = e.Code
	}
	return StableSet{}, &Error{Code: code, Message: fmt.Sprintf("cannot forget %q: %v", name, err)}
}
