// Package certs keeps a TLS identity current: a certificate, its key, and the authorities that the
// other side's certificate is checked against, each in a file that is replaced while a node runs.
//
// It decides whether new files may come into force and with what every handshake from then on is made. Connections
// that are open stay as they are. What a certificate's names allow it leaves to others; the peers' names
// are checked with Source.CheckNode by those who know who says to be whom.
//
// Nothing is resumed: with a session ticket, a client could go on with a certificate whose
// authority is no longer there. A Source works on the goroutine that calls Run.
package certs
