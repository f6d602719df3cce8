//go:build !guards

package guard

// On reports whether g is in force, which it always is.
func On(Guard) bool { return true }
