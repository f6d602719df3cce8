// Package netlimit holds listeners and streams of bytes to the limits of a sluice cluster: connections per client
// address, and bytes per anything.
package netlimit
