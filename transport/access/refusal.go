package access

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/limiter"
)

// reason is why a call, or a part of one, was refused.
type reason uint8

const (
	noCredentials reason = iota
	malformed
	unknownToken
	unknownCertificate
	notGranted
	// notOperator: without a policy, an operator's call by somebody else.
	notOperator
	reasonCount
)

var reasonNames = [reasonCount]string{"no_credentials", "malformed", "unknown_token", "unknown_certificate", "not_granted", "not_operator"}

// refusals are those through one door for one reason.
type refusals struct {
	count atomic.Uint64
	// logged is the Unix time in ns of the last line about them, and told how many there had been by then.
	logged atomic.Int64
	told   atomic.Uint64
}

// logEvery is how often the log has a line about refusals through one door for one reason.
const logEvery = time.Minute

// refused counts a refusal, and logs it unless there was a line just before. verb and domain say what was asked for, where that was looked at.
func (g *Guard) refused(p *Pass, why reason, verb Verb, domain string) {
	r := &g.seen[p.door][why]
	n := r.count.Add(1)
	now, last := g.now().UnixNano(), r.logged.Load()
	if last != 0 && now-last < int64(logEvery) && now >= last || !r.logged.CompareAndSwap(last, now) {
		return
	}
	facts := []any{"door", p.door.String(), "reason", reasonNames[why], "from", p.from()}
	if p.caller != nil || why == notOperator {
		facts = append(facts, "verb", verb.String(), "domain", clip(domain))
	}
	if name := p.Name(); name != "" {
		facts = append(facts, "caller", name)
	}
	g.log.Warn("refused a caller", append(facts, "times", n-r.told.Swap(n))...)
}

// clip shortens what a caller sent, for messages.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Refused is how often something was refused through a door for a reason.
type Refused struct {
	Door, Reason string
	Count        uint64
}

// Stats returns the refusals since the Guard was made, those that have not occurred included.
func (g *Guard) Stats() []Refused {
	list := make([]Refused, 0, limiter.Doors*int(reasonCount))
	for d := range limiter.Doors {
		for r := range reasonCount {
			list = append(list, Refused{limiter.Door(d).String(), reasonNames[r], g.seen[d][r].count.Load()})
		}
	}
	return list
}
