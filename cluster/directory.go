package cluster

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// With home: auto, a hash of the key chooses its directory: one of the regions. Without a record that is the home too. A record is a
// counter of the same shard, so replicas, handoffs and snapshots have it, and so does a role that is passed on, since its limits have the
// directory as home. Its value only grows: an epoch, whether the move has ended, and a hash of the home's name. So a merge of two records
// is the later one. The record of the directory decides. A home has one as well, and decides until it has made one that names another
// region as the next home. A region that is neither needs none; its owners remember where they have found a key.

const (
	// recordLife is how long a record lasts. The home makes it anew in time if the key is used.
	recordLife, renewRecord = 96 * time.Hour, 72 * time.Hour
	// longestMove is the longest time after which a counter of a key that moves must be free: less than recordLife - renewRecord.
	longestMove = 24 * time.Hour
	// maxFound bounds the homes that are remembered.
	maxFound = 1 << 16
	// askAgain is how often an owner asks the directory for one key.
	askAgain = 200 * time.Millisecond
)

const (
	recordEpochAt = 33
	recordSettled = 1 << 32
)

// record is a record of a key, with the region that is its home, or is to be it.
type record struct {
	home    string // "" without a record
	epoch   uint64
	settled bool
	left    time.Duration
}

// found is where an owner has found a key. version is of the set of regions if the directory has said that; since is when it was asked first,
// if it has not said anything.
type found struct {
	role         string
	asked, since int64
	version      uint64
}

// directory is what a node knows of keys with home: auto, besides their records.
type directory struct {
	mu struct {
		sync.Mutex
		found  *simplelru.LRU[bucket.Key, found]
		limits map[string]*bucket.Limits // of records, by directory
		ask    []message.KeyHome         // to be sent to directories
		noted  map[bucket.Key]bool       // keys whose records must be made anew, or else are not settled
		demand map[bucket.Key]dominant
	}
	names atomic.Pointer[[]regionHashed]
	moves map[bucket.Key]*keyMove // of the goroutine of runRoles
	// Keys that have left, and those that were to leave and could not.
	moved, stayed atomic.Uint64
}

type regionHashed struct {
	name string
	hash uint64
}

// regions are all regions, this one included.
func (n *Node) regions() []regionHashed {
	if list := n.directory.names.Load(); list != nil {
		return *list
	}
	return n.listRegions()
}

func (n *Node) listRegions() (list []regionHashed) {
	for _, name := range append(n.cfg.Regions.Others(), n.cfg.Regions.Self()) {
		list = append(list, regionHashed{name, check.HashOf(name)})
	}
	n.directory.names.Store(&list)
	return list
}

// directoryOf returns the region that is the directory of k: the one with the highest hash of both, so that few keys get another one
// when a region is added or removed.
func (n *Node) directoryOf(k bucket.Key) (region string) {
	best := uint64(0)
	for _, r := range n.regions() {
		if h := mix(r.hash ^ mix(k.Hi^mix(k.Lo))); h > best || region == "" {
			best, region = h, r.name
		}
	}
	return region
}

// recordLimits are the limits of the record of a key with that directory.
func (n *Node) recordLimits(directory string) *bucket.Limits {
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	l := n.directory.mu.limits[directory]
	if l == nil {
		var err error
		if l, err = bucket.NewLimitsAt("", directory, bucket.Limit{Algorithm: bucket.FixedWindow, Count: math.MaxInt64 / 2, Period: recordLife, Align: bucket.AlignFirstHit}); err != nil {
			panic(err) // they are constant
		}
		n.directory.mu.limits[directory] = l
	}
	return l
}

// recordKey is the key of k's record, of the same shard.
func recordKey(k bucket.Key) bucket.Key {
	return bucket.Key{Hi: mix(k.Hi ^ 0x9e3779b97f4a7c15), Lo: k.Lo}
}

func (n *Node) recordRequest(k bucket.Key, verb bucket.Verb, cost int64) *bucket.Request {
	return &bucket.Request{Key: recordKey(k), Limits: n.recordLimits(n.directoryOf(k)), Verb: verb, Cost: cost}
}

// record returns the record of a key that this node owns. ok is false if it does not own it now.
func (n *Node) record(now int64, k bucket.Key) (r record, value int64, ok bool) {
	d, _, v := n.table.Try(now, n.recordRequest(k, bucket.Read, 1), nil)
	value = d.Limit - d.Remaining
	if v != bucket.Decided || value == 0 {
		return r, 0, v == bucket.Decided
	}
	for _, region := range n.regions() {
		if uint32(region.hash) == uint32(value) { // else it is a region that was removed
			r = record{region.name, uint64(value) >> recordEpochAt, value&recordSettled != 0, d.ResetAfter}
		}
	}
	return r, value, true
}

// setRecord makes r the record of k unless the present one is later, and returns the number of the change, 0 if there was none.
func (n *Node) setRecord(now int64, k bucket.Key, r record) (seq uint64, ok bool) {
	value := int64(r.epoch)<<recordEpochAt | int64(uint32(check.HashOf(r.home)))
	if r.settled {
		value |= recordSettled
	}
	old, had, ok := n.record(now, k)
	if !ok || value <= had {
		return 0, ok
	}
	var v bucket.Verdict
	if had != 0 && old.left < renewRecord { // for a whole recordLife
		seq, v = n.table.Renew(now, n.recordRequest(k, bucket.Charge, value))
	} else {
		_, seq, v = n.table.Try(now, n.recordRequest(k, bucket.Charge, value-had), nil)
	}
	return seq, v == bucket.Decided
}

// place returns the home of k, as the name of a role, as far as this node knows. sure is false if no decision may be made here now because
// the key is being moved, or the directory must say first whether this region has it.
func (n *Node) place(now int64, k bucket.Key) (role string, sure bool) {
	self, d := n.cfg.Regions.Self(), n.directoryOf(k)
	if !n.routing.Load().owns(k) {
		return self, true // the owner knows
	}
	r, _, ok := n.record(now, k)
	switch {
	case !ok:
		return self, false
	case r.home != "" && !r.settled && n.roles.plays(self) != self:
		return self, true // another region decides what this one did
	case r.home != "" && !r.settled:
		n.noteKey(k, false)
		return self, !guard.On(guard.MoveSeal)
	case n.roles.plays(d) == self:
		return cmp.Or(r.home, d), true
	case r.home == self:
		if r.left < renewRecord {
			n.noteKey(k, true)
		}
		return self, true
	}
	version := n.roles.known().set.Version
	n.directory.mu.Lock()
	f, known := n.directory.mu.found.Get(k)
	n.directory.mu.Unlock()
	role = cmp.Or(f.role, r.home, d)
	if role != d && n.roles.plays(role) == self && (role == self || f.version != version || !known) {
		n.askDirectory(now, k)
		return self, false
	}
	return role, true
}

// home returns the home of the counter of q, "" if each region has its own.
func (n *Node) home(q *bucket.Request) string {
	home := q.Home()
	if home != bucket.HomeAuto || n.cfg.Regions == nil {
		return home
	}
	role, _ := n.place(n.cfg.Clock(), q.Key)
	return role
}

// moving reports whether a decision of q, just made here, does not count: q's key may have another home by now, whose copy of the counter
// lacks the charge.
func (n *Node) moving(q *bucket.Request) bool {
	if !n.manyRegions() || q.Home() != bucket.HomeAuto {
		return false
	}
	role, sure := n.place(n.cfg.Clock(), q.Key)
	return guard.On(guard.MoveSeal) && (!sure || n.roles.plays(role) != n.cfg.Regions.Self())
}

// learn notes that a key with home: auto was not found where it was asked for, which has named role. That may be out of date: after two
// such answers in a row the directory is asked.
func (n *Node) learn(now int64, k bucket.Key, role string) {
	if role == "" || !n.cfg.Regions.Has(role) || !n.routing.Load().owns(k) {
		return
	}
	if n.roles.plays(role) == n.cfg.Regions.Self() {
		n.askDirectory(now, k)
		return
	}
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	f, _ := n.directory.mu.found.Get(k)
	if f.role == role {
		return // the directory may have said that
	}
	if now-f.asked < int64(askAgain) && f.role != "" {
		role = ""
	}
	n.directory.mu.found.Add(k, found{role: role, asked: now})
}

// askDirectory asks the directory of k for its home, which both have then.
func (n *Node) askDirectory(now int64, k bucket.Key) {
	known, _, _ := n.record(now, k)
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	f, _ := n.directory.mu.found.Get(k)
	if now-f.asked < int64(askAgain) && f.asked != 0 {
		return
	}
	if f.asked = now; f.since == 0 {
		f.since = now
	}
	n.directory.mu.found.Add(k, f)
	if known.settled { // the directory may have lost its record
		n.sendLocked(message.KeyHome{Key: k, Home: known.home, Epoch: known.epoch, Told: true})
	}
	ask := message.KeyHome{Key: k}
	if now-f.since >= int64(resendAfter+4*n.cfg.Regions.RTT(n.roles.plays(n.directoryOf(k)))) {
		ask.For = n.cfg.Regions.Self() // another region may reach it
	}
	n.sendLocked(ask)
}

// sendLocked sends x to the directory with the next turn.
func (n *Node) sendLocked(x message.KeyHome) {
	if m := &n.directory.mu; len(m.ask) < maxFound {
		m.ask = append(m.ask, x)
	}
}

// redirect answers a record of another region for a key whose counter this one does not have.
func (n *Node) redirect(now int64, rec *check.Record, reply *check.Reply) {
	reply.Status, reply.Owner = check.AtHome, n.directoryOf(rec.Key)
	switch r, _, ok := n.record(now, rec.Key); {
	case ok && r.home != "" && r.settled:
		reply.Owner = r.home
	case ok && n.roles.plays(reply.Owner) != n.cfg.Regions.Self():
		n.askDirectory(now, rec.Key) // which may have named this region, and not reached it
	}
}

// returnMoved returns the unspent units of a lease of a key that has moved.
func (n *Node) returnMoved(now int64, key bucket.Key, id uint64, unspent int64) {
	if !n.manyRegions() || !n.routing.Load().owns(key) {
		return
	}
	if r, _, ok := n.record(now, key); ok && r.settled && r.home != "" && n.roles.plays(r.home) != n.cfg.Regions.Self() {
		n.returnHome(n.roles.plays(r.home), []lease.Return{{Key: key, ID: id, Unspent: unspent}})
	}
}

// regionOf returns the region that a leaseholder is, "" if it is a node.
func (n *Node) regionOf(boot string) string {
	if strings.HasPrefix(boot, "region ") {
		for _, r := range n.regions() {
			if regionName(r.hash) == boot {
				return r.name
			}
		}
	}
	return ""
}

// redirected notes that p was not found where it was sent. The second time the directory is asked.
func (f *forwarding) redirected(p *pending, role string) {
	n, key := f.node, f.batch.Requests[p.index].Key
	n.learn(f.sent, key, role)
	switch {
	case role == n.cfg.Regions.Self() || !n.cfg.Regions.Has(role):
		p.to, p.region = nextAttempt, ""
	case p.region != "" && p.region != role && p.forwards > 2:
		p.region = n.directoryOf(key)
	default:
		p.region = role
	}
}

// settled returns the records with these limits of a partition, used since a time, but for those of keys that are leaving this region: only
// it knows these.
func (n *Node) settled(now int64, partition int, since int64, limits *bucket.Limits) []bucket.KeyAt {
	keys := n.table.KeysOf(partition, since, limits.Equal, nil)
	return slices.DeleteFunc(keys, func(k bucket.KeyAt) bool {
		d, _, _ := n.table.Try(now, &bucket.Request{Key: k.Key, Limits: limits, Verb: bucket.Read, Cost: 1}, nil)
		return (d.Limit-d.Remaining)&recordSettled == 0
	})
}

// roaming returns the counters of a partition with home: auto whose home is that region, used since a time, and their grants. With all,
// those of keys are among them that have just come, and may get their home there.
func (n *Node) roaming(now int64, partition int, since int64, home string, all bool) []bucket.KeyAt {
	keys := n.table.KeysOf(partition, since, isAuto, nil)
	if all {
		return keys
	}
	return slices.DeleteFunc(keys, func(k bucket.KeyAt) bool {
		role, _ := n.place(now, k.Counter())
		return role != home
	})
}

func isAuto(l *bucket.Limits) bool { return l.Home() == bucket.HomeAuto }
