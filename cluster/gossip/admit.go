package gossip

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/sluicecluster/sluice/internal/member"
)

// Encrypted gossip can be recorded and replayed without the key. memberlist ignores most replays: an update of a known process
// counts only with a higher number than the last one. But it forgets processes that have left or died, and an old message then
// shows them alive until probes fail. So a new process is challenged first, and is in no view until it has responded.
//
// Challenges and responses are user messages of memberlist, so they are encrypted, too: kind, a fresh nonce, and text: the full
// name of the challenged process and the address to respond to, or the full name of the responder. memberlist's pings are
// numbered from 0 at each start, so old answers to them would be valid.
const (
	challenge = 1
	answer    = 2
	nonceSize = 16
)

// unproven is a new process that has not responded yet.
type unproven struct {
	member member.Member
	since  time.Time
	nonce  [nonceSize]byte // of our challenges
	met    bool            // state was exchanged with it, or replayed in its name
}

// addUnprovenLocked adds or updates an unproven process.
func (r *registry) addUnprovenLocked(full string, m member.Member) {
	u, known := r.mu.unproven[full]
	if !known {
		u.since = time.Now()
		_, _ = rand.Read(u.nonce[:]) // never fails
	}
	u.member = m
	r.mu.unproven[full] = u
}

// met notes that state was exchanged with a process, by its full name, and reports whether it is alive and not this one. For an
// unproven one, accept reports that later.
func (r *registry) met(full string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u, ok := r.mu.unproven[full]; ok {
		u.met = true
		r.mu.unproven[full] = u
	}
	_, ok := r.mu.alive[full]
	return ok
}

// allUnproven returns the unproven processes.
func (r *registry) allUnproven() []unproven {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.mu.unproven))
}

// accept makes an unproven process an alive one, if memberlist still believes it alive. It reports whether state was exchanged
// with it before.
func (r *registry) accept(full string) (met bool) {
	r.mu.Lock()
	u, ok := r.mu.unproven[full]
	if ok {
		delete(r.mu.unproven, full)
		r.livesLocked(full, u.member)
	}
	r.mu.Unlock()
	if ok {
		r.signal()
	}
	return u.met
}

// provingPause is the time between two rounds of challenges.
const provingPause = 100 * time.Millisecond

// runChallenges challenges unproven processes every provingPause until they respond or memberlist finds them dead, and responds
// to the challenges of others.
func (g *Gossip) runChallenges(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-g.registry.unprovenAdded:
		case <-again.C:
		case c := <-g.challenges:
			g.send(c.address, "", answer, c.nonce[:], g.registry.self)
			continue
		case <-ctx.Done():
			return
		}
		if g.challengeUnproven() {
			again.Reset(provingPause)
		}
	}
}

// challenged is a challenge to this process, and the address for the response.
type challenged struct {
	nonce   [nonceSize]byte
	address string
}

// maxChallenges bounds the challenges that wait for a response. Others are dropped, and come again.
const maxChallenges = 64

// challengeUnproven makes one round, and reports whether any process is unproven.
func (g *Gossip) challengeUnproven() (more bool) {
	allUnproven := g.registry.allUnproven()
	trust := trustAfter(len(allUnproven) + len(g.View().Members))
	for _, u := range allUnproven {
		full := fullName(u.member.Name, u.member.Boot)
		if time.Since(u.since) < trust {
			g.send(u.member.Gossip, full, challenge, u.nonce[:], full+" "+g.Addr())
		} else if g.registry.accept(full) {
			signal(g.answered)
		}
	}
	return len(allUnproven) > 0
}

// send sends a challenge or its response as a packet, which may be lost.
func (g *Gossip) send(address, full string, kind byte, nonce []byte, text string) {
	message := slices.Concat([]byte{kind}, nonce, []byte(text))
	if err := g.list.SendToAddress(memberlist.Address{Addr: address, Name: full}, message); err != nil {
		g.log.Debug("could not send a challenge or its answer", "address", address, "error", err)
	}
}

// receive takes a challenge or its response. A member wrote it, as only members have the key, but it may be a replay.
func (g *Gossip) receive(message []byte) {
	if g.keys == nil || len(message) < 1+nonceSize {
		return
	}
	kind, nonce, text := message[0], message[1:1+nonceSize], string(message[1+nonceSize:])
	switch kind {
	case challenge:
		full, address, ok := strings.Cut(text, " ") // neither contains one
		if ok && full == g.registry.self {
			select {
			case g.challenges <- challenged{[nonceSize]byte(nonce), address}:
			default:
			}
		}
	case answer:
		g.registry.mu.Lock()
		u, ok := g.registry.mu.unproven[text]
		g.registry.mu.Unlock()
		if ok && bytes.Equal(u.nonce[:], nonce) && g.registry.accept(text) {
			signal(g.answered)
		}
	}
}

// trustAfter is how long memberlist must believe a process alive that does not respond to this node, in a cluster of n, until
// this node accepts it: the network may be partitioned between the two only. It is longer than memberlist needs to detect a dead
// process: two rounds of probes, and suspicion at its longest.
func trustAfter(n int) time.Duration {
	suspicion := 2 * suspicionMult * max(1, math.Log10(float64(max(n, 1))))
	return 5*time.Second + time.Duration((2*float64(n+1)+suspicion)*float64(probeInterval))
}

// admit returns the member of a memberlist node, or why it is rejected. The error names the peer's value and ours.
func admit(c Config, node *memberlist.Node) (member.Member, error) {
	meta, err := decodeMeta(node.Meta)
	if err != nil {
		return member.Member{}, err
	}
	m := meta.member
	if want := fullName(m.Name, m.Boot); node.Name != want {
		return member.Member{}, fmt.Errorf("it is called %q but its metadata says %q", node.Name, want)
	}
	if meta.placement != uint32(c.Placement) {
		return member.Member{}, fmt.Errorf("its placement is %d, ours is %d: they would send keys to different owners; "+
			"run versions with the same placement", meta.placement, c.Placement)
	}
	if meta.region != c.Region && meta.region != "" && c.Region != "" {
		return member.Member{}, fmt.Errorf("its region is %q, ours is %q: each region is a cluster of its own; correct --region, or --join",
			meta.region, c.Region)
	}
	m.Gossip = node.Address()
	return m, nil
}
