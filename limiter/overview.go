package limiter

import (
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/ring"
)

// Overview is what Config.Cluster tells: who is there, and how the node stands among
// them. It is a value; the caller keeps nothing of it.
type Overview struct {
	// View is who gossip shows, Ring who should hold what; either may be nil.
	View *member.View
	Ring *ring.Table
	// Set is the stable set, zero while none is known.
	Set StableSet
	// MayDecide: the node has the right to decide. If not, Reason says why, for people.
	MayDecide bool
	Reason    string
	// Unreached says what the node does not reach and waits for, a sentence each.
	Unreached []string
	// Standings are how other processes stand with this one, in any order.
	Standings []Standing
	Holdings  Holdings
	Clocks    Clocks
	// LostRules are rules that deny because of Holdings.Lost, at most 20.
	LostRules []LostRule
}

// StableSet is one version of the names that majorities are counted in.
type StableSet struct {
	// Lineage is the boot id of the process that founded it: versions of two lineages
	// have nothing to do with each other.
	Lineage string
	// Version counts from 1; 0 is no set.
	Version uint64
	// Members are names, sorted.
	Members []string
}

// Standing is what a node knows of one process.
type Standing struct {
	// Boot is empty for a name that is counted and that gossip does not show.
	Name, Boot string
	// Lives: heard from just now.
	Lives bool
	// Silent is how long it has not been heard from; negative if that is not known.
	Silent time.Duration
	// Holds is how many partitions it holds, as far as is known.
	Holds int
	// Ahead is how far its clock is ahead; nil if that is not known.
	Ahead *time.Duration
}

// Clocks is how the voters' clocks stand.
type Clocks struct {
	// Known: those of a majority are known. Agree: those of a majority do.
	Known, Agree bool
	// Correction is how far the node aligns windows ahead of its own clock.
	Correction time.Duration
}

// Holdings are numbers of partitions that a node has something of, as of now.
type Holdings struct {
	// Holding are its to decide; Unprotected are those of them of which no other node
	// has a complete copy.
	Holding, Unprotected int
	// BelowReplicas are its own of which fewer nodes than are wanted, and than there are, have a complete replica.
	BelowReplicas int
	// HandingOver are on their way to another holder just now.
	HandingOver int
	// Copies are of partitions that others hold.
	Copies int
	// Claims are under way, for partitions without a living holder.
	Claims int
	// Forks are states that are still to be merged into their holder's.
	Forks int
	// Lost are those of Holding that were taken over without the counters that there were.
	Lost int
}

// LostRule is a rule that denies keys of partitions whose counters are lost, for how much longer at most.
type LostRule struct {
	Domain, Rule string
	Left         time.Duration
}
