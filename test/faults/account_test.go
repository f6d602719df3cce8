//go:build linux

package faults

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// state says when the keys of a group are spent.
type state string

const (
	// spent before the fault, and every node has heard so from the owner.
	spent state = "spent"
	// unknown keys are spent before the fault by way of one node; the others never asked.
	unknown state = "unknown"
	// spending keys are asked from before the fault until after it, and are at their limit halfway through it.
	spending state = "spending"
	// ample keys are asked like these, and no run spends them.
	ample state = "ample"
)

// group is keys with one rule.
type group struct {
	policy string // as, sync, closed, hot or probe: see ruleFile
	state  state
	keys   int
	limit  int64
	rate   float64 // checks a second of each key at each node
	batch  int     // checks of a call, of the keys in turn
}

func (g group) name() string { return g.policy + "/" + string(g.state) }

// async reports whether an owner answers before a replica knows of the charge.
func (g group) async() bool { return g.policy == "as" || g.policy == "hot" }

// share reports whether nodes may answer without the owner.
func (g group) share() bool { return g.policy != "closed" }

// account is what was admitted of a group's keys. It is safe for concurrent use.
type account struct {
	group
	mu   sync.Mutex
	keys []*key
	// What became of checks, and fallbacks that admitted by the node asked.
	sources  map[string]int
	fallback map[string]*spell
	fault    time.Duration // how long it lasts
	during   spanOf
}

// spanOf is what became of checks in the middle of the fault: when nodes know how slow the network is.
type spanOf struct {
	owners, others int             // checks that an owner has decided, and the rest, errors among them
	forwarded      []time.Duration // how long calls took in which a check was forwarded
}

// key is what the auditor knows of one key.
type key struct {
	admitted, owners int64
	closed           int // denials without an owner, with units left
	nodes            map[string]*heard
	// When an owner decided last, and the longest time between two decisions.
	decided time.Time
	gap     time.Duration
}

// heard is what a node has last told the auditor of an owner's answer.
type heard struct {
	known bool
	left  int64
	// share is the largest number of units that the node could take its own share of, of all times
	// in which it admitted something by itself; -1 for none.
	share int64
	// alone are the units that it admitted by itself, of each number that it could take its share of.
	alone []portion
}

// portion is units that a node admitted by itself while an owner had told it that left remained.
type portion struct {
	left        int64
	units       int
	first, last time.Duration // after the fault began
}

func (p portion) String() string {
	return fmt.Sprintf("%d of %d from %.2fs to %.2fs", p.units, p.left, p.first.Seconds(), p.last.Seconds())
}

// spell is a number of units, and when the first and the last were admitted after the fault began.
type spell struct {
	units       int
	first, last time.Duration
}

func (s *spell) String() string {
	return fmt.Sprintf("%d from %.2fs to %.2fs", s.units, s.first.Seconds(), s.last.Seconds())
}

func newAccount(g group) *account {
	a := &account{group: g, sources: map[string]int{}, fallback: map[string]*spell{}}
	for range g.keys {
		a.keys = append(a.keys, &key{nodes: map[string]*heard{}})
	}
	return a
}

// answer is one decision as the auditor got it.
type answer struct {
	key     int
	node    string // that was asked
	source  string
	owner   bool // an owner has decided, or a lease that it granted
	allowed bool
	left    int64
	at      time.Time
	fault   time.Duration // since the fault began
	took    time.Duration // from the call's beginning
}

func (a *account) add(d answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	what := d.source + " denied"
	if d.allowed {
		what = d.source
	}
	a.sources[what]++
	if a.inMiddle(d.fault) {
		if d.owner {
			a.during.owners++
		} else {
			a.during.others++
		}
		if d.source == "forwarded" {
			a.during.forwarded = append(a.during.forwarded, d.took)
		}
	}
	k := a.keys[d.key]
	h := k.nodes[d.node]
	if h == nil {
		h = &heard{share: -1}
		k.nodes[d.node] = h
	}
	if d.allowed {
		k.admitted++
	}
	switch {
	case d.owner:
		if d.allowed {
			k.owners++
		}
		h.known, h.left = true, d.left
		if !k.decided.IsZero() {
			k.gap = max(k.gap, d.at.Sub(k.decided))
		}
		k.decided = d.at
	case !d.allowed:
		if k.admitted < a.limit {
			k.closed++
		}
	default:
		left := a.limit
		if h.known {
			left = h.left
		}
		h.share = max(h.share, left)
		if n := len(h.alone); n == 0 || h.alone[n-1].left != left {
			h.alone = append(h.alone, portion{left: left, first: d.fault})
		}
		last := &h.alone[len(h.alone)-1]
		last.units, last.last = last.units+1, d.fault
		s := a.fallback[d.node]
		if s == nil {
			s = &spell{first: d.fault}
			a.fallback[d.node] = s
		}
		s.units, s.last = s.units+1, d.fault
	}
}

// unanswered counts checks without a decision.
func (a *account) unanswered(fault time.Duration, checks int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inMiddle(fault) {
		a.during.others += checks
	}
}

// inMiddle reports whether a time since the fault began is in its second half: nodes have noticed by then how slow the network has
// become, and TCP has recovered from what it took for losses.
func (a *account) inMiddle(since time.Duration) bool { return since > a.fault/2 && since < a.fault }

// p99 returns the 99th percentile of calls with forwarded checks.
func (s *spanOf) p99() time.Duration {
	if len(s.forwarded) == 0 {
		return 0
	}
	slices.Sort(s.forwarded)
	return s.forwarded[len(s.forwarded)*99/100]
}

// finding is a group's line in the results.
type finding struct {
	Excess int64    `json:"excess"`           // units above the limits
	Most   int64    `json:"most"`             // of one key
	Limit  int64    `json:"limit"`            // of a key
	Owners int64    `json:"owners,omitempty"` // units above the limits that owners admitted alone
	Bound  int64    `json:"bound"`            // the largest excess that the bound allows a key of this run
	Beyond int64    `json:"beyond,omitempty"` // units beyond the keys' bounds, or beyond those of owners
	Keys   []string `json:"keys,omitempty"`   // those keys
	Shares int      `json:"shares,omitempty"` // units admitted without an owner
	// Of keys being spent: Used is the part of the limits that was admitted, and Gap the longest
	// time without an owner's decision of a key, in seconds. Closed is the number of denials
	// without an owner of keys with units left.
	Used   float64 `json:"used,omitempty"`
	Closed int     `json:"closed,omitempty"`
	Gap    float64 `json:"gap,omitempty"`
}

// judge holds every key to the bound, in a cluster of n voters.
func (a *account) judge(b bound, n int) finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := finding{Limit: a.limit}
	used := int64(0)
	for i, k := range a.keys {
		owners := b.owners(a.group, n)
		allowed := owners + b.shares(a.group, k, n)
		over, overOwners := max(0, k.admitted-a.limit), max(0, k.owners-a.limit)
		f.Excess += over
		f.Owners += overOwners
		f.Most = max(f.Most, k.admitted)
		f.Bound = max(f.Bound, allowed)
		if more := max(0, over-allowed, overOwners-owners); more > 0 {
			f.Beyond += more
			f.Keys = append(f.Keys, fmt.Sprintf("key %d: %d admitted, %d by owners, bound +%d%s", i, k.admitted, k.owners, allowed, k.tell()))
		}
		used += min(k.admitted, a.limit)
		f.Closed += k.closed
	}
	if a.state == spending {
		f.Used = math.Floor(float64(used)/float64(a.limit)/float64(len(a.keys))*1000) / 1000
	}
	for _, s := range a.fallback {
		f.Shares += s.units
	}
	return f
}

// tell returns what each node admitted of k by itself.
func (k *key) tell() (text string) {
	for _, name := range slices.Sorted(maps.Keys(k.nodes)) {
		if h := k.nodes[name]; len(h.alone) > 0 {
			text += fmt.Sprintf("; %s: %v", name, h.alone)
		}
	}
	return text
}

// longestGap returns the longest time that a key had no owner's decision, until the time given.
func (a *account) longestGap(until time.Time) (longest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keys {
		longest = max(longest, k.gap)
		if !k.decided.IsZero() {
			longest = max(longest, until.Sub(k.decided))
		}
	}
	return longest
}

// bound is what consistency.md allows a scenario. Zero is planned change: nothing beyond the limit.
type bound struct {
	// row is the situation in the table of docs/internals/consistency.md, or the item of docs that it follows from.
	row string
	// nodes is how many may answer by themselves at most, on_failure or on_partition share: each ⌊left ÷ voters⌋ of a
	// key, left being what the owner told it last; the whole limit where it never asked (unknown_share: limit).
	nodes int
	// losses is how often a key may lose its owner with what it admitted in 50 ms and had not copied (async rules).
	losses int
	// snapshot adds what is admitted in the time between two snapshots.
	snapshot bool
	// fresh says that some keys may lose owner and replica at once: async rules then begin anew (on_lost_state: fresh).
	fresh bool
	// gap is the longest time that a key may be without an owner's decision; 0 if none is promised.
	gap time.Duration
	// found is how long after the fault no partition is lost any more, and closed keys with units
	// left are admitted; 0 if that is not promised.
	found time.Duration
	// rtt is the round trip between nodes, if the time of forwarded checks is bounded by it.
	rtt time.Duration
	// tcp is the congestion control of the nodes.
	tcp string
	// answered is the part of checks that owners decide at least, and no partition is taken over from an owner that lives.
	answered float64
}

// forwarded returns how long all but a hundredth of a group's forwarded checks may take: the way there and back, for a sync rule
// also to the replica and back, half a round trip for what is sent again or waits, and 20 ms. BBR lets a connection have four packets under way for
// a fifth of a second and a round trip, every 10 s, to measure the round trip (ProbeRTT): what comes meanwhile waits for up to another one.
func (b bound) forwarded(g group) time.Duration {
	halves := time.Duration(3)
	if !g.async() && g.policy != "probe" {
		halves = 5
	}
	if b.tcp == "bbr" {
		halves += 2
	}
	return b.rtt*halves/2 + 20*time.Millisecond
}

const (
	uncopied         = 50 * time.Millisecond
	snapshotInterval = 2 * time.Second
)

// owners returns how far beyond a key's limit owners alone may go, where n nodes are asked.
func (b bound) owners(g group, n int) (units int64) {
	if g.state == spending || b.fresh { // what is spent of keys that begin anew may be lost too
		if g.async() {
			units += int64(b.losses) * g.within(uncopied, n)
		}
		if b.snapshot {
			units += g.within(snapshotInterval, n)
		}
	}
	if b.fresh && g.async() {
		units += g.limit
	}
	return units
}

// within returns how many checks of a key n nodes are asked in a time at most.
func (g group) within(d time.Duration, n int) int64 {
	calls := g.rate * d.Seconds() * float64(n) * float64(g.keys) / float64(g.batch)
	perCall := int64((g.batch + g.keys - 1) / g.keys)
	return (int64(calls) + 1) * perCall
}

// shares returns what nodes may have admitted of the key by themselves: the largest shares of those that did.
func (b bound) shares(g group, k *key, n int) (units int64) {
	if !g.share() {
		return 0
	}
	var shares []int64
	for _, h := range k.nodes {
		if h.share >= 0 {
			shares = append(shares, h.share/int64(n))
		}
	}
	slices.Sort(shares)
	slices.Reverse(shares)
	for _, s := range shares[:min(b.nodes, len(shares))] {
		units += s
	}
	return units
}

func TestAccount(t *testing.T) {
	keys := func(policy string, st state) group {
		return group{policy: policy, state: st, keys: 2, limit: 20, rate: 10, batch: 2}
	}
	sync := keys("sync", spending)
	for _, test := range []struct {
		name  string
		bound bound
		group group
		told  string // node, who decided, what, what is left, how often
		want  string
	}{
		{"exact", bound{}, sync, "n1 owner allowed 0 20, n1 owner denied 0 5", "most 20, owners +0, bound +0, beyond 0, shares 0, used 0.5"},
		{
			"a share where none is allowed", bound{}, sync, "n1 owner allowed 0 20, n2 alone allowed 0 1",
			"most 21, owners +0, bound +0, beyond 1, shares 1, used 0.5",
		},
		{
			"a third of what was left", bound{nodes: 1}, sync, "n2 owner allowed 9 11, n2 alone allowed 0 3, n1 owner allowed 0 9",
			"most 23, owners +0, bound +3, beyond 0, shares 3, used 0.5",
		},
		{
			"more than that", bound{nodes: 1}, sync, "n2 owner allowed 9 11, n2 alone allowed 0 6, n1 owner allowed 0 9",
			"most 26, owners +0, bound +3, beyond 3, shares 6, used 0.5",
		},
		{
			"it heard that nothing was left", bound{nodes: 3}, sync, "n2 owner allowed 0 20, n2 alone allowed 0 2",
			"most 22, owners +0, bound +0, beyond 2, shares 2, used 0.5",
		},
		{
			"a key that it never asked for", bound{nodes: 1}, sync, "n1 owner allowed 0 20, n2 alone allowed 0 6",
			"most 26, owners +0, bound +6, beyond 0, shares 6, used 0.5",
		},
		{
			"two nodes where one may", bound{nodes: 1}, sync, "n1 owner allowed 0 20, n2 alone allowed 0 6, n3 alone allowed 0 6",
			"most 32, owners +0, bound +6, beyond 6, shares 12, used 0.5",
		},
		{
			"owners alone", bound{nodes: 3}, sync, "n1 owner allowed 0 21, n2 alone allowed 0 6",
			"most 27, owners +1, bound +6, beyond 1, shares 6, used 0.5",
		},
		{"what 50 ms admit", bound{losses: 1}, keys("as", spending), "n1 owner allowed 0 23", "most 23, owners +3, bound +2, beyond 1, shares 0, used 0.5"},
		{
			"spent before: there was nothing to lose", bound{losses: 1}, keys("as", spent), "n1 owner allowed 0 21",
			"most 21, owners +1, bound +0, beyond 1, shares 0, used 0",
		},
		{
			"no state, but closed", bound{fresh: true, nodes: 3}, keys("closed", spent), "n1 owner allowed 0 40",
			"most 40, owners +20, bound +0, beyond 20, shares 0, used 0",
		},
	} {
		a := newAccount(test.group)
		for told := range strings.SplitSeq(test.told, ", ") {
			var node, by, what string
			var left int64
			var times int
			if _, err := fmt.Sscan(told, &node, &by, &what, &left, &times); err != nil {
				t.Fatal(err)
			}
			for range times {
				a.add(answer{node: node, owner: by == "owner", allowed: what == "allowed", left: left})
			}
		}
		f := a.judge(test.bound, 3)
		got := fmt.Sprintf("most %d, owners +%d, bound +%d, beyond %d, shares %d, used %v", f.Most, f.Owners, f.Bound, f.Beyond, f.Shares, f.Used)
		if got != test.want || f.Excess != f.Most-f.Limit || f.Beyond > 0 != (len(f.Keys) > 0) {
			t.Errorf("%s: %s, %+v; want %s", test.name, got, f, test.want)
		}
	}
}

func TestLongestGap(t *testing.T) {
	a := newAccount(group{policy: "probe", keys: 2})
	at := func(key, second int, owner bool) {
		a.add(answer{key: key, node: "n1", owner: owner, at: time.Unix(int64(second), 0)})
	}
	at(0, 1, true)
	at(1, 1, true)
	at(0, 2, false)
	at(0, 4, true)
	at(1, 2, true)
	if got := a.longestGap(time.Unix(4, 0)); got != 3*time.Second {
		t.Errorf("%v, want 3s", got)
	}
	if got := a.longestGap(time.Unix(9, 0)); got != 7*time.Second {
		t.Errorf("to the end: %v, want 7s", got)
	}
}
