// Package arch holds the rules about which part of sluice may use which: it
// reads the source of the whole module and says where a rule is broken. Its
// test fails the build then.
//
// It decides from source text alone, so that files for every operating system
// count, and knows nothing about what the code does. It starts no goroutine.
package arch
