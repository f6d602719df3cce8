package transcripts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// tellEpoch writes an epoch as takeovers.handoffs@owner.
func tellEpoch(e message.Epoch) string {
	if e == (message.Epoch{}) {
		return "0"
	}
	return tellGeneration(e.Gen) + "@" + e.Boot
}

func tellGeneration(g uint64) string {
	return fmt.Sprintf("%d.%d", g>>message.Handoffs, g&(1<<message.Handoffs-1))
}

func tellMark(m message.Mark) string { return fmt.Sprintf("%s#%d", tellEpoch(m.Epoch), m.Seq) }

// kindOf names a type of message, for the command drop. A transfer batch that ends a handoff is a commit.
func kindOf(b message.Body) string {
	switch b := b.(type) {
	case *message.Heartbeat:
		return "heartbeat"
	case *message.Ack:
		return "acknowledgement"
	case *message.Prepare:
		return "prepare"
	case *message.Promise:
		return "promise"
	case *message.Accept:
		return "accept"
	case *message.Accepted:
		return "accepted"
	case *message.OwnedPartitions:
		return "ownership"
	case *message.PendingGrants:
		return "grants"
	case *message.Claim:
		return "claim"
	case *message.ClaimResponse:
		return "grant"
	case *message.Fetch:
		return "fetch"
	case *message.TransferBatch:
		if slices.ContainsFunc(b.Parts, func(p message.Part) bool { return p.Kind == message.Close }) {
			return "commit"
		}
		return "batch"
	case *message.Receipt:
		return "receipt"
	}
	return fmt.Sprintf("%T", b)
}

// kinds are what kindOf returns.
var kinds = []string{
	"heartbeat", "acknowledgement", "prepare", "promise", "accept", "accepted", "ownership", "grants", "claim", "grant", "fetch",
	"batch", "commit", "receipt",
}

// describe returns a message in words.
func describe(e *message.Envelope) string {
	var s strings.Builder
	separator := ": "
	item := func(format string, args ...any) {
		fmt.Fprintf(&s, separator+format, args...)
		separator = ", "
	}
	say := func(format string, args ...any) { fmt.Fprintf(&s, format, args...) }
	version := func(x message.Set) string {
		if x.Zero() {
			return "no voter set"
		}
		return fmt.Sprintf("voters v%d of %s", x.Version, x.ID)
	}
	switch b := e.Body.(type) {
	case *message.Heartbeat:
		say("heartbeat, %s", version(b.Set))
		if b.Expect > 0 {
			say(", would found one with %d voters", b.Expect)
		}
		if b.Wish == message.Join && !b.Set.Has(e.From.Name) {
			say(", wishes to join")
		}
		if b.Wish == message.Leave {
			say(", wishes to leave")
		}
		for _, x := range []struct {
			yes  bool
			text string
		}{{b.NoQuorum, ", lacks quorum"}, {b.Isolated, ", isolated"}, {b.Unconfirmed, ", unconfirmed"}} {
			if x.yes {
				say("%s", x.text)
			}
		}
		for _, id := range b.Void {
			say(", takes no part in founding %s", id)
		}
	case *message.Ack:
		say("%s, %s", map[bool]string{true: "acknowledged", false: "not acknowledged"}[b.OK], version(b.Set))
		if b.Unconfirmed {
			say(", unconfirmed")
		}
	case *message.Prepare:
		say("prepare voters v%d, ballot %d of %s", b.Version, b.Ballot.Round, b.Ballot.Boot)
	case *message.Promise:
		say("%s voters v%d, ballot %d of %s", map[bool]string{true: "promise", false: "no promise"}[b.OK], b.Version, b.Ballot.Round, b.Ballot.Boot)
		if !b.Accepted.Zero() {
			say(", has accepted (%s)", strings.Join(b.Accepted.Members, " "))
		}
	case *message.Accept:
		say("accept voters v%d (%s), ballot %d of %s", b.Set.Version, strings.Join(b.Set.Members, " "), b.Ballot.Round, b.Ballot.Boot)
	case *message.Accepted:
		say("%s voters v%d, ballot %d of %s", map[bool]string{true: "accepted", false: "not accepted"}[b.OK], b.Version, b.Ballot.Round, b.Ballot.Boot)
	case *message.OwnedPartitions:
		say("ownership")
		if b.Full {
			say(", all of it")
		}
		for _, h := range b.Partitions {
			item("p%d at %s", h.Partition, tellGeneration(h.Gen))
			if h.NextOwner != (message.Peer{}) {
				say(" (next owner %s)", h.NextOwner.Boot)
			}
			if h.Replicated {
				say(" (replicated)")
			}
		}
		if len(b.Partitions) == 0 {
			item("nothing")
		}
	case *message.PendingGrants:
		say("pending grants %d", b.Seq)
		for _, g := range b.Grants {
			item("p%d at %s to %s", g.Partition, tellGeneration(g.Gen), g.Claimer.Boot)
		}
		if len(b.Grants) == 0 {
			item("none")
		}
	case *message.Claim:
		if b.Probe {
			say("probe")
		} else {
			say("claim")
		}
		for _, p := range b.Parts {
			item("p%d at %s", p.Partition, tellGeneration(p.Gen))
		}
		if len(b.Parts) == 0 {
			item("asks which acknowledgements are in force")
		}
	case *message.ClaimResponse:
		describeGrant(say, item, b, e.To.Boot)
	case *message.Fetch:
		say("fetch the state of p%d, %s", b.Partition, tellMark(b.State))
	case *message.TransferBatch:
		say("transfer batch %d", b.N)
		for _, p := range b.Parts {
			item("%s", describePart(&p))
		}
		if len(b.Parts) == 0 {
			item("empty")
		}
	case *message.Receipt:
		say("receipt %d", b.N)
		for _, r := range b.Rejected {
			say(", part %d rejected: %s knows epoch %s", r.Part, r.Owner.Boot, tellEpoch(r.Known))
		}
		if b.NotServing {
			say(", not serving")
		}
	default:
		say("%T", b)
	}
	return s.String()
}

func describeGrant(say, item func(string, ...any), b *message.ClaimResponse, claimer string) {
	if b.Probe {
		say("response to the probe")
	} else {
		say("grant")
	}
	if !b.Votes {
		say(", no vote")
	}
	for _, g := range b.Parts {
		switch {
		case !g.OK:
			item("p%d rejected, %s owns it at epoch %s", g.Partition, g.Owner.Boot, tellEpoch(g.Known))
		case b.Probe:
			item("p%d yes", g.Partition)
		case g.Has == message.None:
			item("p%d granted, no state", g.Partition)
		default:
			item("p%d granted, %s state %s", g.Partition, [...]string{"no", "partial", "complete"}[g.Has], tellMark(g.State))
		}
	}
	separator := "; acknowledgements in force: "
	for _, a := range b.Acked {
		if a.Boot != claimer {
			say("%s%s for %d ms", separator, a.Boot, time.Duration(a.Left).Milliseconds())
			separator = ", "
		}
	}
}

func describePart(p *message.Part) string {
	epoch := tellMark(message.Mark{Epoch: p.Epoch, Seq: p.Seq})
	switch p.Kind {
	case message.InitialSync:
		what := "changes"
		switch {
		case p.Begin && p.End:
			what = "initial sync, all of it"
		case p.Begin:
			what = "initial sync begins"
		case p.End:
			what = "initial sync ends"
		}
		return fmt.Sprintf("p%d %s, %s, counters %d", p.Partition, what, epoch, p.Counters)
	case message.Close:
		return fmt.Sprintf("p%d commit, %s, counters %d, next epoch %s", p.Partition, epoch, p.Counters, tellEpoch(p.Next))
	case message.Answer:
		return fmt.Sprintf("p%d fetched state, %s, counters %d", p.Partition, epoch, p.Counters)
	case message.Merge:
		return fmt.Sprintf("p%d divergent state, %s, counters %d", p.Partition, epoch, p.Counters)
	case message.Drop:
		return fmt.Sprintf("p%d drop the replica", p.Partition)
	}
	return fmt.Sprintf("p%d unknown part %d", p.Partition, p.Kind)
}
