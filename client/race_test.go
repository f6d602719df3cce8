//go:build race

package client

// raced: the race detector is on, which allocates on its own.
const raced = true
