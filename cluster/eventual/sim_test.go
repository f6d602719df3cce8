package eventual

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// A simulator of one key on several nodes, one of which holds it: messages are dropped, doubled, late and in another
// order, nodes are cut off in one direction or both, crash and come back, and the owner changes, by handoff
// and by crash. It judges every window by what really happened.

const (
	simStep   = 5 * time.Millisecond
	simWindow = 10 * time.Second
	simRest   = 2 * time.Second // before a window's end nothing is asked for, and nothing fails
	simCopies = 20 * time.Millisecond
)

// faults is what a run goes through.
type faults struct {
	nodes           int
	limit           int64
	demand          int64         // checks a second at each node
	delay           time.Duration // the longest, one way
	drop, double    float64
	cuts            float64 // a second, of one direction
	cut             time.Duration
	crashes         float64 // a second, of one node that does not hold
	deaths, changes float64 // a second, of the owner: it crashes, it hands off
	skew            time.Duration
	forgetful       bool // the owner takes each report for one of another process, so no sum has a maximum
}

// outcome is what came of it, in the worst window.
type outcome struct {
	excess, bound int64
	ratio         float64
	wrong         string // of the account, "" if nothing is
	strict        int64
	local         int64
}

type controlMessage struct {
	at       int64
	from, to int
	by, boot string // of the sender, and of the receiver
	body     message.Body
}

// process is one node.
type process struct {
	boot   string
	book   *Book
	skew   int64
	asks   float64
	report int64
	heard  int64   // when the newest report was sent that the owner has counted
	cut    []int64 // until when, to each other
}

type sim struct {
	faults
	rng    *rand.Rand
	now    int64
	limits *bucket.Limits
	key    bucket.Key
	nodes  []*process
	boots  int
	post   []controlMessage // by time
	owner  int
	table  *bucket.Table
	side   *Owner

	// The copy that a crash of the owner goes on from, and what it has of strict charges and reports.
	copied     int64
	image      bucket.Image
	copyStrict int64
	copyHeard  []int64
	copyKnown  map[string]int64

	// Of this window: what each process has admitted, and the owner has counted of it; what was charged strictly,
	// and lost of it; how old what the owner knew, and what others knew of it, was at most.
	ends         int64
	sums, known  map[string]int64
	dead         map[string]bool
	strict, lost int64
	lag, age     int64
	out          outcome
}

func newSim(f faults, seed uint64) *sim {
	s := &sim{faults: f, rng: rand.New(rand.NewPCG(seed, 1)), limits: windowOf(f.limit, simWindow), key: bucket.Key{Hi: 3, Lo: 4}}
	s.table = newSimTable()
	s.side = NewOwner(s.table, 10)
	for range f.nodes {
		p := &process{cut: make([]int64, f.nodes)}
		s.boot(p)
		s.nodes = append(s.nodes, p)
	}
	s.copyHeard = make([]int64, f.nodes)
	s.begin()
	return s
}

func newSimTable() *bucket.Table {
	t, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		panic(err)
	}
	return t
}

// boot makes p a new process.
func (s *sim) boot(p *process) {
	s.boots++
	p.boot, p.book = fmt.Sprint("b", s.boots), NewBook(10)
	p.skew = int64(s.rng.Float64() * float64(s.skew))
	p.report = s.now + s.rng.Int64N(int64(Period))
	p.heard = s.now
}

// begin begins a window.
func (s *sim) begin() {
	s.ends = s.limits.WindowEnd(s.now)
	s.sums, s.known, s.dead = make(map[string]int64), make(map[string]int64), make(map[string]bool)
	s.strict, s.lost, s.copyStrict, s.lag, s.age = 0, 0, 0, 0, 0
	s.copyKnown = nil
	for i, p := range s.nodes {
		p.heard = max(p.heard, s.now)
		s.copyHeard[i] = max(s.copyHeard[i], s.now)
	}
}

// run runs some windows.
func (s *sim) run(windows int) outcome {
	for range windows {
		for s.now < s.ends-int64(simStep) {
			s.step(s.now < s.ends-int64(simRest))
		}
		s.judge()
		for s.now < s.ends {
			s.step(false)
		}
		s.begin()
	}
	return s.out
}

func (s *sim) chance(aSecond float64) bool { return s.rng.Float64() < aSecond*simStep.Seconds() }

// step is one moment of the run. lively: there is demand, and there are faults.
func (s *sim) step(lively bool) {
	s.now += int64(simStep)
	for len(s.post) > 0 && s.post[0].at <= s.now {
		l := s.post[0]
		s.post = s.post[1:]
		if s.nodes[l.to].boot == l.boot {
			s.take(l)
		}
	}
	if s.now-s.copied >= int64(simCopies) {
		s.copy()
	}
	if lively {
		s.fail()
	} else {
		for _, p := range s.nodes {
			clear(p.cut)
		}
	}
	for i, p := range s.nodes {
		if lively {
			for p.asks += float64(s.demand) * simStep.Seconds(); p.asks >= 1; p.asks-- {
				s.ask(i)
			}
		}
		if s.now >= p.report {
			p.report += int64(Period)
			s.tell(i, lively)
		}
		if s.sums[p.boot] == s.known[p.boot] {
			p.heard = s.now
		}
		s.lag = max(s.lag, s.now-p.heard)
	}
}

func (s *sim) fail() {
	for i, p := range s.nodes {
		for j := range p.cut {
			if s.chance(s.cuts / float64(s.faults.nodes)) {
				p.cut[j] = s.now + s.rng.Int64N(int64(s.cut))
			}
		}
		if i != s.owner && s.chance(s.crashes) {
			s.dead[p.boot] = true
			s.boot(p)
		}
	}
	if s.chance(s.changes) {
		s.copy()
		s.open()
	}
	if s.chance(s.deaths) {
		old := s.nodes[s.owner]
		s.dead[old.boot] = true
		s.lost, s.known = s.strict-s.copyStrict, maps.Clone(s.copyKnown)
		if s.known == nil {
			s.known = make(map[string]int64)
		}
		for i, p := range s.nodes {
			p.heard = s.copyHeard[i]
		}
		s.open()
		s.boot(old)
	}
}

// copy keeps a copy of what the owner has.
func (s *sim) copy() {
	s.copied = s.now
	s.image = bucket.Image{}
	s.table.Export(s.now, 0, s.table.Keys(0, nil), &s.image)
	s.copyStrict, s.copyKnown = s.strict-s.lost, maps.Clone(s.known)
	for i, p := range s.nodes {
		s.copyHeard[i] = p.heard
	}
}

// open makes another node the owner of what the copy has.
func (s *sim) open() {
	s.table = newSimTable()
	if err := s.table.Import(s.copied, 0, &s.image, s.image.Data, s.image.Counters, false); err != nil {
		panic(err)
	}
	s.side = NewOwner(s.table, 10)
	s.owner = (s.owner + 1 + s.rng.IntN(len(s.nodes)-1)) % len(s.nodes)
}

// ask is one check at node i.
func (s *sim) ask(i int) {
	p := s.nodes[i]
	r := bucket.Request{Key: s.key, Limits: s.limits, Cost: 1}
	d, age, ok := p.book.Decide(s.now+p.skew, &r)
	if ok {
		if d.Allowed {
			s.out.local++
			s.sums[p.boot]++
			s.age = max(s.age, min(int64(age), s.now-s.ends+int64(simWindow)))
		}
		return
	}
	if p.cut[s.owner] > s.now || s.nodes[s.owner].cut[i] > s.now {
		return // nobody answers
	}
	if s.table.Do(s.now, &r).Allowed {
		s.out.strict++
		s.strict++
	}
}

// tell sends node i's report.
func (s *sim) tell(i int, lively bool) {
	p := s.nodes[i]
	report := &message.Report{Sent: s.now + p.skew}
	p.book.Report(s.now+p.skew, func(l message.Line) { report.Lines = append(report.Lines, l) })
	if len(report.Lines) > 0 {
		s.send(i, s.owner, report, lively)
	}
}

// send puts a control message into the post, or two, or none.
func (s *sim) send(from, to int, body message.Body, lively bool) {
	if from == to {
		s.take(controlMessage{from: from, to: to, by: s.nodes[from].boot, body: body})
		return
	}
	if s.nodes[from].cut[to] > s.now || lively && s.rng.Float64() < s.drop {
		return
	}
	for range 2 {
		l := controlMessage{s.now + s.rng.Int64N(int64(s.delay)+1), from, to, s.nodes[from].boot, s.nodes[to].boot, body}
		i := len(s.post)
		for i > 0 && s.post[i-1].at > l.at {
			i--
		}
		s.post = slices.Insert(s.post, i, l)
		if !lively || s.rng.Float64() >= s.double {
			return
		}
	}
}

func (s *sim) take(l controlMessage) {
	p := s.nodes[l.from]
	switch b := l.body.(type) {
	case *message.Report:
		if l.to != s.owner {
			return
		}
		answer, by := &message.Account{Sent: b.Sent, Clock: s.now}, l.by
		if s.forgetful {
			by = fmt.Sprint(by, s.now)
		}
		for i := range b.Lines {
			st, c, ok := s.side.Count(s.now, Tag(by), &b.Lines[i], len(s.nodes))
			if !ok {
				continue
			}
			s.out.note(c)
			answer.Lines = append(answer.Lines, st)
			if b.Lines[i].Ends != st.Ends {
				continue
			}
			s.known[l.by] = max(s.known[l.by], b.Lines[i].Sum)
			if p.boot == l.by {
				p.heard = max(p.heard, b.Sent-p.skew)
			}
		}
		s.send(l.to, l.from, answer, s.now < s.ends-int64(simRest))
	case *message.Account:
		to := s.nodes[l.to]
		for i := range b.Lines {
			to.book.Learn(s.now+to.skew, b.Sent, b.Clock, &b.Lines[i])
		}
	}
}

func (o *outcome) note(c bucket.Counted) {
	if c.Added < 0 || c.Over < 0 || c.Over > c.Added {
		o.wrong = fmt.Sprintf("counted %+v", c)
	}
}

// judge compares what was admitted in this window with what the key's counter says, and with the bound.
func (s *sim) judge() {
	want, all := s.strict-s.lost, s.strict
	var tail int64
	for boot, n := range s.sums {
		all += n
		if s.dead[boot] {
			tail += n - s.known[boot]
			n = s.known[boot]
		}
		want += n
	}
	if got := s.counts(); got != want {
		s.out.wrong = fmt.Sprintf("the owner has counted %d; reported and charged were %d", got, want)
	}
	excess := all - s.limit
	span := time.Duration(s.age + s.lag + int64(simStep))
	bound := int64(float64(s.demand)*float64(len(s.nodes)-1)*span.Seconds()) + tail + s.lost + int64(len(s.nodes))
	if r := float64(excess) / float64(bound); s.out.bound == 0 || r > s.out.ratio {
		s.out.excess, s.out.bound, s.out.ratio = excess, bound, r
	}
}

// counts returns what the key's counter has counted, beyond the limit too: a limit of another count sees what was
// spent.
func (s *sim) counts() int64 {
	d := s.table.Do(s.now, &bucket.Request{Key: s.key, Limits: windowOf(1<<40, simWindow), Verb: bucket.Read})
	return d.Limit - d.Remaining
}
