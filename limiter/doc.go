// Package transport joins front doors to the node: it validates what came in,
// matches rules once, hashes the counter key, asks a check.Decider and maps the
// answers back, so that every door (gRPC, HTTP and those to come) means the same
// by a check. It also converts limits to and from the wire, and says how descriptors may be shown: a value gets into a log,
// a trace or an answer about others' keys by Hasher.AppendShown or Limiter.Shown only.
//
// It decides whether a check is well formed, which rule it is held to and what
// shadow mode makes of the answer. How much is left, and which node says so, is
// the Decider's; status codes and headers are the doors'. It starts no goroutine.
package limiter
