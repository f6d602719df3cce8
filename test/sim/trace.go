package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// general is the partition of events that concern all or none.
const general = -1

// line is one event of a trace.
type line struct {
	at   int64
	text string
	// parts are the affected partitions; none means all.
	parts uint64
	// noise is omitted unless requested: heartbeats and the like.
	noise bool
}

// tell adds a line to the trace, if there is one.
func (w *simCluster) tell(part int, format string, args ...any) {
	if w.trace == nil {
		return
	}
	l := line{at: w.now, text: fmt.Sprintf(format, args...)}
	if part >= 0 {
		l.parts = 1 << part
	}
	w.trace.add(l)
}

func (w *simCluster) tellControlMessage(p *process, l *controlMessage) {
	if w.trace == nil {
		return
	}
	text, parts, noise := describe(l.envelope.Body)
	w.trace.add(line{w.now, fmt.Sprintf("%s → %s  %s", short(l.envelope.From), p, text), parts, noise})
}

func (w *simCluster) tellLost(l *controlMessage) {
	if w.trace == nil || l.hop != nil {
		return
	}
	text, parts, noise := describe(l.envelope.Body)
	w.trace.add(line{w.now, fmt.Sprintf("%s → %s  LOST %s", short(l.envelope.From), short(l.envelope.To), text), parts, noise})
}

// Trace is the trace of a run.
type Trace struct{ lines []line }

func (s *Trace) add(l line) { s.lines = append(s.lines, l) }

// Last returns the last n lines that concern the partition, or all if it is negative; noise includes heartbeats and the like.
func (s *Trace) Last(n, partition int, noise bool) string {
	var picked []string
	for i := len(s.lines) - 1; i >= 0 && len(picked) < n; i-- {
		l := &s.lines[i]
		if l.noise && !noise || partition >= 0 && l.parts != 0 && l.parts&(1<<partition) == 0 {
			continue
		}
		picked = append(picked, fmt.Sprintf("%12.6f  %s\n", time.Duration(l.at).Seconds(), l.text))
	}
	var b strings.Builder
	for i := len(picked) - 1; i >= 0; i-- {
		b.WriteString(picked[i])
	}
	return b.String()
}

func short(p message.Peer) string {
	if len(p.Boot) > 10 {
		return p.Name + "/" + p.Boot[10:]
	}
	return p.Name + "/" + p.Boot
}

func tellBoot(boot string) string {
	if len(boot) > 10 {
		return boot[10:]
	}
	return boot
}

func tellEpoch(e message.Epoch) string {
	return fmt.Sprintf("%d.%d@%s", e.Gen>>message.Handoffs, e.Gen&(1<<message.Handoffs-1), tellBoot(e.Boot))
}

func tellGen(g uint64) string {
	return fmt.Sprintf("%d.%d", g>>message.Handoffs, g&(1<<message.Handoffs-1))
}

func tellMark(m message.Mark) string { return fmt.Sprintf("%s#%d", tellEpoch(m.Epoch), m.Seq) }

func tellSet(s message.Set) string {
	return fmt.Sprintf("%s v%d %v", tellBoot(s.ID), s.Version, s.Members)
}

// describe returns a body as text, its partitions, and whether it is noise.
func describe(b message.Body) (text string, parts uint64, noise bool) {
	var s strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&s, format, args...) }
	about := func(p int) { parts |= 1 << p }
	switch b := b.(type) {
	case *message.Heartbeat:
		say("heartbeat, set v%d, wish %d, seen %d", b.Set.Version, b.Wish, b.Seen)
		noise = true
	case *message.Ack:
		say("ack %v, set v%d", b.OK, b.Set.Version)
		noise = true
	case *message.OwnedPartitions:
		say("owned partitions %d full=%v:", b.Seq, b.Full)
		noise = b.Full
		for _, h := range b.Partitions {
			say(" p%d %s", h.Partition, tellGen(h.Gen))
			if h.NextOwner != (message.Peer{}) {
				say(" to %s", short(h.NextOwner))
			}
			about(h.Partition)
		}
	case *message.PendingGrants:
		say("pending grants %d:", b.Seq)
		for _, g := range b.Grants {
			say(" p%d %s to %s", g.Partition, tellGen(g.Gen), short(g.Claimer))
			about(g.Partition)
		}
	case *message.Claim:
		say("claim %d:", b.ID)
		for _, c := range b.Parts {
			say(" p%d %s", c.Partition, tellGen(c.Gen))
			about(c.Partition)
		}
	case *message.ClaimResponse:
		say("grant %d:", b.ID)
		for _, g := range b.Parts {
			say(" p%d ok=%v knows %s of %s, has %d %s;", g.Partition, g.OK, tellEpoch(g.Known), short(g.Owner), g.Has, tellMark(g.State))
			about(g.Partition)
		}
		for _, a := range b.Acked {
			say(" acked %s for %v more", tellBoot(a.Boot), time.Duration(a.Left))
		}
	case *message.Fetch:
		say("fetch p%d %s for %s", b.Partition, tellMark(b.State), tellGen(b.Gen))
		about(b.Partition)
	case *message.TransferBatch:
		say("transfer batch %d:", b.N)
		for _, p := range b.Parts {
			say(" %s", describePart(&p))
			about(p.Partition)
		}
	case *message.Receipt:
		say("receipt %d", b.N)
		noise = len(b.Rejected) == 0
		for _, r := range b.Rejected {
			say(", rejected part %d: knows %s of %s", r.Part, tellEpoch(r.Known), short(r.Owner))
		}
	default:
		say("%T %+v", b, b)
	}
	return s.String(), parts, noise
}

func describePart(p *message.Part) string {
	kind := [...]string{"?", "initial_sync", "close", "answer", "merge", "drop"}
	s := fmt.Sprintf("p%d %s %s initial sync %d #%d %d counters", p.Partition, kind[min(int(p.Kind), 5)], tellEpoch(p.Epoch), p.InitialSync, p.Seq, p.Counters)
	if p.Begin {
		s += " begin from " + tellMark(p.Start)
	}
	if p.End {
		s += " end"
	}
	if p.Next != (message.Epoch{}) {
		s += " next " + tellEpoch(p.Next)
	}
	return s + ";"
}
