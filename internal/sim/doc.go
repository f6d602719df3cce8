// Package sim drives whole clusters of cluster/quorum and cluster/handoff machines,
// each over a real bucket.Table, through seeded schedules of faults, and judges every
// decision against a model that knows everything.
//
// All is one goroutine and one seed: virtual time, a queue of events, a network that
// delays, loses, doubles and cuts, processes that crash, pause and come back, and a
// stand-in for gossip that may be late and wrong. The same seed gives the same run,
// so a failure is told by its seed alone:
//
//	make sim SEEDS=100000
//	go test ./internal/sim -run TestSeed$ -v -args -seed 4711 -lines 300
//
// What a process does around its machines (when it serves, how it leaves, how a check
// finds its holder) is done here as the node does it. Snapshots of counters, relays and
// give-backs are left out. sharing.go adds keys that processes answer without their owners, by cluster/share.
//
// Leases have runs of their own, RunLeases: a holder, its standby and borrowers of one key, without the machines.
//
// profile.go and chaos.go have the kinds of schedules, excess.go says how much may be
// admitted beyond a limit in each, sharing_judged.go what shares may admit, and judging.go, term.go and settled.go have the other invariants.
package sim
