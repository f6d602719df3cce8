// Package eventual decides checks of rules with consistency eventual on the node that is asked, and keeps the
// account of them at the key's holder. It decides what a node may admit before it has heard of the holder
// again, and what a holder makes of reports that are lost, doubled, late or in another order. Time is a
// parameter, and it does no I/O and has no goroutines: cluster sends and delivers the messages.
//
// A Book is the asked node's half, a Holder the holder's. What has been counted already is in the holder's
// table (bucket.Table.Tally) and goes where the partition goes.
package eventual
