package gossip

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// certain is how many rejections in a row are believed: one alone may be of a process that was just stopping.
const certain = 2

// judge notes whether a join target has answered that this node is none of its cluster.
func (j *joiner) judge(a *attempt, err error) {
	why := ""
	if err != nil {
		why = rejection(err.Error())
	}
	if why == "" {
		a.rejections = 0
	} else {
		a.rejections++
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if a.rejections < certain {
		delete(j.mu.rejected, a.address)
		return
	}
	text := fmt.Sprintf("%s (--join %s): %s", a.address, a.target, why)
	j.mu.rejected[a.address] = text
	if j.quiet.Allow(time.Now(), text) {
		j.log.Error("rejected by a join target: this node is not part of that cluster, and is not ready until this is cured", "address", a.address,
			"target", a.target, "reason", why)
	}
}

// forgetRejected drops the addresses that are not tried any more.
func (j *joiner) forgetRejected(attempts map[string]*attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for address := range j.mu.rejected {
		if attempts[address] == nil {
			delete(j.mu.rejected, address)
		}
	}
}

// Rejected says which join targets answer and do not take this node, and why: what differs and what to do. The keys are
// their addresses.
func (g *Gossip) Rejected() map[string]string {
	j := g.joiner
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.mu.rejected)
}

// LongestRejoin is how long it takes at most until members that miss this node's address have tried it.
func (g *Gossip) LongestRejoin() time.Duration {
	return 2*g.config.Timing.RejoinInterval + g.config.Timing.ProbeTimeout
}

// Failures says which join targets do not answer, and why.
func (g *Gossip) Failures() []string { return g.joiner.failures() }

// rejection says what the error of an exchange with a peer means that has answered, and what to do; "" if it did not answer. memberlist's
// errors are texts.
func rejection(text string) string {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case has("dial ", "resolve", "lookup ", "timeout", "deadline exceeded", "use of closed"):
		return ""
	case has("placement is"):
		return text[max(0, strings.Index(text, "its ")):]
	case has("encrypt", "decrypt"):
		return "secret or keyring differs: give all nodes the same --secret-file and --gossip-keyring (" + text + ")"
	case has("msgType", "unsupported", "msgpack", "missing message type"):
		return "it is no gossip port: give the gossip port in --join, 7463 by default (" + text + ")"
	case has("EOF", "reset by peer", "broken pipe"):
		return "it closes the connection: secret or keyring differs (give all nodes the same --secret-file and --gossip-keyring), or it is no gossip port (" + text + ")"
	}
	return text
}
