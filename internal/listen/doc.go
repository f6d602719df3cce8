// Package listen bounds what strangers can hold of a port: how many connections there are, how many
// of them one address has, and how long one may stay silent before it costs more than its
// descriptor. It decides nothing else: who a caller is and what it may ask is for the server behind it.
//
// A Listener owns a goroutine that accepts and one for each connection that has not said anything
// yet; Close waits for all of them.
package listen
