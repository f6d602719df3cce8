// Package connect has real Connect clients call a server whose limit denies them. It is a module of its own, since nothing else
// needs Connect.
package connect
