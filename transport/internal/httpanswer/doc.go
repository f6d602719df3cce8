// Package httpanswer is how HTTP doors tell what became of a check: the rate limit
// headers that HTTP clients know, the answer that a rule gives to who is denied, and
// problem+json bodies. Which checks there are, and the bodies of those that were
// allowed, are each door's. It starts no goroutine.
package httpanswer
