// Package access says who may do what: it reads the file of --callers into a Policy, finds out by a token or a
// certificate who a caller is, and asks that caller's grants. Every door asks it before it does anything:
//
//	pass, err := guard.Call(ctx, limiter.GRPCDoor)            // gRPC: Authorization metadata, else a verified certificate
//	pass, err := guard.Request(r, limiter.HTTPDoor)           // HTTP: the same of a request
//	pass, err := guard.Proxied(r, limiter.ForwardAuthDoor)    // forward auth: Authorization is the proxy's client's
//
// An error is an *limiter.Error of code Unauthenticated, to be answered at once. A Pass then says what the
// caller may do, for one call; long-lived streams keep the Identity and come Again with each request, and so do
// streams of events with each batch of them:
//
//	err := pass.Restrict(batch)                        // checks: faults in those that are not granted
//	err := pass.May(access.Read, domain)               // one thing in one domain; "" is all domains
//	err := pass.Operate(ctx, access.Admin, "")         // what, without a file, operators alone may: see AsOperator
//
// Without a policy (no --callers) everything but Operate is open, and nothing is looked at. A nil *Guard is the
// same, for tests of doors.
//
// It decides nothing about limits, reads no files (internal/callerfile does), and never keeps, logs or returns a
// token. It starts no goroutine.
package access
