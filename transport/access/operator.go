package access

import "context"

type operatorKey struct{}

// AsOperator returns ctx for a call that came in where operators alone can: over the operators' socket, or with the
// operators' token. Without a policy such calls alone may do what Operate guards. With one they may do everything, unless
// they show credentials, which go first.
func AsOperator(ctx context.Context) context.Context {
	return context.WithValue(ctx, operatorKey{}, true)
}

// IsOperator reports whether ctx is of AsOperator.
func IsOperator(ctx context.Context) bool {
	is, _ := ctx.Value(operatorKey{}).(bool)
	return is
}
