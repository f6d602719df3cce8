// Package model judges the log of one key: whether a limit could have admitted what
// was admitted, and whether it had to admit what was denied.
//
// It decides from times between which each decision was made, never from when it was
// made, which nobody outside the node knows. Its verdicts are sound: units over or
// under are reported only if no way of placing the decisions explains the log.
// Every rounding favours the cluster. So a correct cluster is never accused, and a
// wrong one is caught where the times leave no doubt.
//
// It leaves asking the cluster, and what the verdicts mean for a run, to package
// audit. It is pure: no I/O, no clock, no goroutine.
package model
