// Package bucket decides whether a key may spend a cost now. It holds the limits,
// the algorithms that measure spending against them, the counters in which the
// spending of each key is kept, and the sharded, bounded table of counters.
//
// It leaves everything else to others: which limits apply to a key (rules),
// which node decides (cluster), how a decision travels (transport). It is pure:
// no I/O, no logging, no goroutine, and it never reads a clock; every call takes
// the time. What needs doing now and then ([Table.Sweep]) is called by its owner.
//
// A shard is also what nodes hand to each other. It can be sealed, so that nothing is decided in it
// ([Table.Seal], [Table.Try]), it can say what has changed ([Table.Record], [Table.Drain]), and its counters
// travel as an [Image]. Who is sent what, and when a shard is sealed, is for others to say (cluster/handoff).
//
// Four principles hold for every algorithm:
//
//   - A counter keeps what was spent, never what is left. So a limit that is raised
//     or lowered takes effect at the next check, and nothing is minted by it.
//   - Arithmetic is on integers, exact to the nanosecond, and saturates at the
//     ends of int64.
//   - The time of a counter never runs backwards: a time before the last one at
//     which the counter was used is taken as that last one.
//   - A counter that is wholly free again is the same as no counter. Dropping
//     it changes no later decision.
package bucket
