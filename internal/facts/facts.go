// Package facts has the reports of nodes about themselves. The console and the APIs show their counts, partitions and keys.
package facts

import (
	"fmt"
	"time"
)

// Counts are numbers of checks by result, since the start of the node or within a Slot.
type Counts struct{ Allowed, Denied, Shadowed, Failed uint64 }

// Sum returns the number of checks.
func (c Counts) Sum() uint64 { return c.Allowed + c.Denied + c.Shadowed + c.Failed }

// Plus returns the sum of c and d.
func (c Counts) Plus(d Counts) Counts {
	return Counts{c.Allowed + d.Allowed, c.Denied + d.Denied, c.Shadowed + d.Shadowed, c.Failed + d.Failed}
}

// Minus returns the increase since before. A counter that is lower than before has restarted and counts in full.
func (c Counts) Minus(before Counts) Counts {
	less := func(a, b uint64) uint64 {
		if a < b {
			return a
		}
		return a - b
	}
	return Counts{
		less(c.Allowed, before.Allowed), less(c.Denied, before.Denied),
		less(c.Shadowed, before.Shadowed), less(c.Failed, before.Failed),
	}
}

// A history has Slots slots of SlotTime each: the last five minutes, the present slot, and one more for clocks that differ. Slot n begins at Unix time n·SlotTime.
const (
	SlotTime = 5 * time.Second
	Slots    = 62
)

// MaxRules is the number of rules that a node reports: those with the most checks. MaxHistories is how many of them, and of
// those kept, have a history.
const (
	MaxRules     = 512
	MaxHistories = 512
)

// Node is a node's report about itself.
type Node struct {
	// Name and Boot are set by the node that collects the reports.
	Name, Boot string
	// Rules is a hash of the rules in force, empty for none.
	Rules string
	// MayDecide: it has quorum. If not, Reason says why.
	MayDecide       bool
	Reason          string
	PartitionCounts PartitionCounts
	// SnapshotLost says why the node has started without an earlier snapshot, empty if it has not.
	SnapshotLost string
	// Early is how many checks the node has answered without their owners, before their callers' deadlines, since fallbacks answer
	// some; 0 when owners answer all.
	Early uint64
	// All are the checks of all rules, unmatched ones included.
	All     Counts
	Latency Latency
	// ByRule has at most MaxRules entries, sorted by domain and name.
	ByRule []Rule
	// RulesError says why the newest rule files are not in force; empty if they are.
	RulesError string
	// Files are the certificates, keys and secrets that the node follows, at most MaxNotices.
	Files []File
	// Insecure are the protections that the node runs without although other machines reach it, a sentence each, at most
	// MaxNotices.
	Insecure []string
	// Region is the name of the region that the node's cluster is, empty without one.
	Region string
	// Regions are the other regions as the node sees them, sorted by name, at most MaxNotices.
	Regions []Region
	// Decides are the homes whose keys the region decides now. DecidedBy is the region that is to decide those with the home Region.
	Decides   []string
	DecidedBy string
	// RoleProblem says why keys are not decided in the region that is to decide them, and what to do. Only the node that speaks for the region
	// knows.
	RoleProblem string
	// Undecided are homes of rules whose keys the region is to decide, and must not decide now.
	Undecided []string
	// Weight is the weight of Region, 0 without other regions.
	Weight int
	// Slot is the newest slot of the histories, 0 without histories.
	Slot int64
	// History counts all checks; otherwise as in Rule.
	History []Counts
	// Members has the size of the cluster in each slot of History, as far as the node knew it. It is 0 if the node knows
	// nothing of the slot, for example because it was not running.
	Members []int
	// Calls are those of each slot of History, by the buckets of Latency.
	Calls [][]uint64
	// Uptime is the time since the start of the process, Keys the number of counters, Bytes their memory, MaxBytes its limit.
	Uptime                time.Duration
	Keys, Bytes, MaxBytes int64
}

// MaxNotices is the number of Files and of Insecure of a report, MaxText the length of their texts,
// of RulesError and of SnapshotLost, in bytes.
const (
	MaxNotices = 32
	MaxText    = 1024
)

// Region is the state of the link to another region. Its texts have at most MaxText bytes.
type Region struct {
	Name  string
	State RegionState
	// InState is how long State has been so.
	InState time.Duration
	// Nodes are those of its nodes that this one has connections to and that answer, at most MaxNotices.
	Nodes []string
	// RTT is the round trip to it, 0 if it was never reached.
	RTT time.Duration
	// Reason says why it is not reached, or what is wrong although it is; empty if nothing is.
	Reason string
	// In and Out are the bytes received and sent on connections that this node has made.
	In, Out uint64
	// Weight is its weight in --region-weights.
	Weight int
	// DecidedBy is the region that is to decide the keys whose home it is.
	DecidedBy string
}

// Problem says what is wrong with the link, "" if nothing is known to be.
func (r *Region) Problem() string {
	if (r.State == RegionLinked || r.State == RegionUnknown) && r.Reason == "" {
		return ""
	}
	return fmt.Sprintf("region %s is %s: %s", r.Name, r.State, r.Reason)
}

// RegionState is the state of a region in one word.
type RegionState string

// The values of RegionState.
const (
	RegionUnknown   RegionState = "unknown" // no node of it was reached or missed since this one has started
	RegionLinked    RegionState = "linked"
	RegionUnreached RegionState = "unreached" // no node of it answers
	RegionUnusable  RegionState = "unusable"  // nodes answer, but nothing may be sent to them
)

// File is the state of a file, or of files that belong together, that a node follows.
type File struct {
	// Label is the flags' name in metrics, for example "peer" or "secret".
	Label string
	// Error says why the newest contents are not in force; empty if they are.
	Error string
	// Expires is when the certificate in force does, Unix time in seconds, 0 without one. Left is the share of its life that
	// is left, 1 to 0.
	Expires int64
	Left    float64
}

// PartitionCounts are current numbers of partitions of a node. Their JSON form is that of the HTTP API.
type PartitionCounts struct {
	// Owned are those that the node owns.
	Owned int `json:"owned"`
	// Unprotected are owned ones without a complete replica on a node that is heard.
	Unprotected int `json:"unprotected"`
	// BelowReplicas are owned ones with fewer complete replicas than are wanted and than there are nodes for.
	BelowReplicas int `json:"below_replicas"`
	// HandingOver are in handoff to another owner.
	HandingOver int `json:"handing_over"`
	// Replicas are those of partitions that other nodes own.
	Replicas int `json:"replicas"`
	// TakingOver are takeovers in progress, of partitions without a living owner.
	TakingOver int `json:"taking_over"`
	// Divergent are states that are still to be merged into their owner's.
	Divergent int `json:"divergent"`
	// Lost are owned ones that were taken over without their counters.
	Lost int `json:"lost"`
}

// Latency is a histogram; see timing.Latency.
type Latency struct {
	Bounds []time.Duration
	Counts []uint64
	Sum    time.Duration
}

// Rule has the counts of one rule.
type Rule struct {
	Domain, Name string
	Counts
	// History has the slots up to the node's Slot, oldest first, at most Slots; empty if not requested.
	History []Counts
}

// Key is a node's state of a counter key.
type Key struct {
	// Node is set by the node that collects the reports.
	Node      string
	Partition int
	// Owner: it owns the key. Replica: it has a replica of its partition, which is Complete or in initial sync.
	Owner, Replica, Complete bool
	// Gen is the generation of its state, if it has one.
	Gen uint64
	// Only from the owner. Counted: there is a counter; without one, all limits are unspent. Limits are in the order of the
	// rule.
	Counted bool
	Limits  []Limit
	// Grants is the number of leases that the owner has granted and that have not ended, Granted their total units.
	Grants  int
	Granted int64
	// Held are the first of the grants, at most MaxHeld.
	Held []Holding
	// Leased: it has a lease of the key, with LeaseLeft unspent units.
	Leased    bool
	LeaseLeft int64
	// Denies is how much longer its denial cache denies the key, 0 if it does not.
	Denies time.Duration
}

// MaxHeld is the most grants of a key in one report.
const MaxHeld = 100

// Holding is an open grant of a key.
type Holding struct {
	ID uint64
	// Use is reservation, slot or lease.
	Use   string
	Units int64
	// Caller is a hash of who has it, 0 for nobody known.
	Caller uint32
	// Expires is the time until the deadline.
	Expires time.Duration
}

// Limit is the state of one limit of a key. Spent includes granted units and may exceed Limit, by debt or a soft margin.
// Limit and Remaining are math.MaxInt64 for no limit.
type Limit struct {
	Limit, Spent, Remaining int64
	// ResetAfter is the time until the limit is unspent again if nothing more is spent.
	ResetAfter time.Duration
}

// Turn is a reservation that waits for its turn among those who wait for slots, at the node that owns the key of the first check.
type Turn struct {
	Checks []TurnCheck `cbor:"1,keyasint"`
	// Key is the idempotency key of Caller that the reservation is to have.
	Key    string `cbor:"2,keyasint"`
	Caller string `cbor:"3,keyasint,omitempty"`
	// Units, Least and TTL are those of limiter.ReserveRequest.
	Units int64         `cbor:"4,keyasint,omitempty"`
	Least int64         `cbor:"5,keyasint,omitempty"`
	TTL   time.Duration `cbor:"6,keyasint,omitempty"`
	// Waited is how long it has waited at other nodes.
	Waited time.Duration `cbor:"7,keyasint,omitempty"`
}

// TurnCheck is a check of a Turn. Descriptor has keys and values in turn.
type TurnCheck struct {
	Domain     string   `cbor:"1,keyasint"`
	Descriptor []string `cbor:"2,keyasint"`
}
