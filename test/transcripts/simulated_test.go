package transcripts

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// Times of the simulated cluster. None of them is random.
const (
	oneWay   = time.Millisecond       // of a message, on every link
	ticking  = 20 * time.Millisecond  // between two ticks of a process
	joinTime = 50 * time.Millisecond  // from the start of a process until its join targets have answered
	gossips  = 100 * time.Millisecond // until gossip shows a new process, another state or an ordered end
	probing  = time.Second            // until gossip shows that a process does not answer any more
	placing  = 2 * time.Millisecond   // until the ring of another view is built
	writing  = 5 * time.Millisecond   // of a voter set, to disk
	dead     = 700 * time.Millisecond // of silence, after which a member is not in the ring
	maxSkew  = 500 * time.Millisecond // up to which a node goes by its own clock
)

// epoch is what a right clock shows when a transcript begins: ten minutes into an hour.
const epoch = int64(1_700_000_000/3600*3600+600) * int64(time.Second)

// simulated is a cluster of real machines over real tables. The network, gossip and the disks are simulated, and the time is a number.
type simulated struct {
	now    int64 // ns since the transcript began
	events []event

	names      []string // of all nodes, in order
	runs       map[string][]*process
	partitions int
	ring       [][]string // by partition: it belongs to the first of these that serves; then to the others by name
	limits     []*bucket.Limits
	counts     []int64 // of limits
	expect     map[string]int
	clocks     map[string]time.Duration
	disks      map[string]*message.Record

	cut   map[[2]string]bool
	drops []drop

	transcript
}

type event struct {
	at int64
	do func()
}

// drop is one message that will get lost.
type drop struct{ kind, from, to string }

func newSimulated() *simulated {
	c := &simulated{
		runs: map[string][]*process{}, expect: map[string]int{}, clocks: map[string]time.Duration{},
		disks: map[string]*message.Record{}, cut: map[[2]string]bool{},
	}
	c.transcript.told = map[[2]message.Peer]*told{}
	c.divide(1)
	return c
}

// divide makes n partitions, each with one counter of 100 in 1,000 hours.
func (c *simulated) divide(n int) {
	c.partitions, c.ring, c.limits, c.counts = n, make([][]string, n), make([]*bucket.Limits, n), make([]int64, n)
	for p := range n {
		if err := c.limit(p, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: 1000 * time.Hour, Align: bucket.AlignFirstHit}); err != nil {
			panic(err) // the limit is a constant
		}
	}
}

// limit gives the counter of partition p another limit.
func (c *simulated) limit(p int, l bucket.Limit) error {
	limits, err := bucket.NewLimits(l)
	if err == nil {
		c.limits[p], c.counts[p] = limits, l.Count
	}
	return err
}

func key(p int) bucket.Key { return bucket.Key{Hi: uint64(p), Lo: uint64(p)} }

func (c *simulated) after(d time.Duration, do func()) {
	at := c.now + int64(d)
	i := sort.Search(len(c.events), func(i int) bool { return c.events[i].at > at })
	c.events = slices.Insert(c.events, i, event{at: at, do: do})
}

// pass lets d pass. It ends after the millisecond in which done says so, and reports whether it has.
func (c *simulated) pass(d time.Duration, done func() bool) (ended bool) {
	end := c.now + int64(d)
	for len(c.events) > 0 && c.events[0].at <= end {
		e := c.events[0]
		c.events = c.events[1:]
		c.now = e.at
		e.do()
		if !ended && done != nil && done() {
			ended, end = true, c.now/ms*ms+ms-1
		}
	}
	if !ended {
		c.now = end
	}
	return ended
}

// running returns all processes that run, by name.
func (c *simulated) running() (list []*process) {
	for _, name := range c.names {
		for _, p := range c.runs[name] {
			if !p.ended {
				list = append(list, p)
			}
		}
	}
	return list
}

// start runs a process of a name.
func (c *simulated) start(name string) *process {
	if !slices.Contains(c.names, name) {
		c.names = append(c.names, name)
		slices.Sort(c.names)
	}
	p := &process{c: c, clock: c.clocks[name], started: c.now, sights: map[string]*sight{}}
	p.voters = tellVoters(message.Set{}, false)
	p.handing = map[message.Epoch]bool{}
	p.self = message.Peer{Name: name, Boot: fmt.Sprintf("%s%d", name, len(c.runs[name])+1)}
	table, err := bucket.NewTable(bucket.Config{Shards: c.partitions})
	if err != nil {
		panic(err) // the configuration is a constant
	}
	p.table = table
	q := quorum.Config{Self: p.self, Expect: c.expect[name]}
	if disk := c.disks[name]; disk != nil {
		q.Disk, q.Record = true, *disk
	}
	p.quorum = quorum.New(q, p.time())
	p.handoff = handoff.New(handoff.Config{
		Self: p.self, Partitions: c.partitions, Table: table, Quorum: p.quorum,
	}, p.time())
	c.runs[name] = append(c.runs[name], p)
	c.say(p, "started")
	c.after(joinTime, p.join)
	c.after(ticking, p.tick)
	return p
}

// truth is what gossip would show p of a name if it knew everything.
func (c *simulated) truth(p *process, name string) seen {
	for _, q := range c.runs[name] {
		if !q.ended && q.admitted && c.hears(p, q) {
			return seen{q, q.state}
		}
	}
	return seen{}
}

// hears reports whether probes between p and q arrive, by way of a third if need be.
func (c *simulated) hears(p, q *process) bool {
	links := func(a, b *process) bool {
		return !c.cut[[2]string{a.self.Name, b.self.Name}] && !c.cut[[2]string{b.self.Name, a.self.Name}]
	}
	return links(p, q) || slices.ContainsFunc(c.running(), func(r *process) bool { return links(p, r) && links(r, q) })
}

// send puts a message on its way, or loses it. It comes to the process of its address: the last run of the name that gossip has admitted.
func (c *simulated) send(e message.Envelope) {
	from, to := e.From.Name, e.To.Name
	if c.cut[[2]string{from, to}] {
		c.sent(e, cutOff)
		return
	}
	if i := slices.Index(c.drops, drop{kindOf(e.Body), from, to}); i >= 0 {
		c.drops = slices.Delete(c.drops, i, i+1)
		c.sent(e, lost)
		return
	}
	arrived := c.sent(e, arrives)
	c.after(oneWay, func() {
		for _, p := range slices.Backward(c.runs[to]) {
			if p.admitted || p.self == e.To {
				arrived(p)
				p.receive(e)
				return
			}
		}
	})
}
