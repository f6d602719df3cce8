package peer

import (
	"fmt"
	"math"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// controlMessageWriter makes the frames of one control messages stream. A message that no receiver
// could take is rejected when it is added.
type controlMessageWriter struct {
	post   peerv1.Post
	texts  map[string]uint32
	limits numbering
	err    error // of the control message that is being added
	// transfer batches keep the memory of their columns from frame to frame; used are in
	// this one.
	transferBatches []*peerv1.ControlMessage_TransferBatch
	used            int
}

func newControlMessageWriter(maxLimits int) *controlMessageWriter {
	return &controlMessageWriter{texts: make(map[string]uint32), limits: numbering{most: maxLimits}}
}

// begin begins a frame, and lets go of the last one's messages.
func (w *controlMessageWriter) begin() {
	cutPost(&w.post)
	w.limits.begin()
	clear(w.texts)
	for _, p := range w.transferBatches[:w.used] {
		cutTransferBatch(p.TransferBatch)
	}
	w.used = 0
}

// add adds e to the frame.
func (w *controlMessageWriter) add(e *message.Envelope) error {
	w.err = nil
	m := &peerv1.ControlMessage{To: w.process(e.To), ClusterId: w.text(e.ClusterID)}
	w.body(m, e.Body)
	if w.err != nil {
		return fmt.Errorf("%T: %w", e.Body, w.err)
	}
	w.post.ControlMessages = append(w.post.ControlMessages, m)
	return nil
}

func (w *controlMessageWriter) body(m *peerv1.ControlMessage, b message.Body) {
	switch b := b.(type) {
	case *message.Heartbeat:
		m.Body = &peerv1.ControlMessage_Heartbeat{Heartbeat: &peerv1.Heartbeat{
			Sent: b.Sent, Set: w.set(b.Set), Wish: uint32(b.Wish), Seen: b.Seen,
			PendingGrants: b.PendingGrants, Unconfirmed: b.Unconfirmed, Isolated: b.Isolated, LeaseNs: b.Lease,
			NoQuorum: b.NoQuorum, Expect: uint32(b.Expect), Founding: b.Founding,
			Void: each(b.Void, func(id *string) uint32 { return w.text(*id) }),
		}}
	case *message.Ack:
		m.Body = &peerv1.ControlMessage_Ack{Ack: &peerv1.Ack{Sent: b.Sent, Got: b.Got, Ok: b.OK, Set: w.set(b.Set), PendingGrants: b.PendingGrants, Unconfirmed: b.Unconfirmed, LeaseNs: b.Lease}}
	case *message.Prepare:
		m.Body = &peerv1.ControlMessage_Prepare{Prepare: &peerv1.Prepare{
			Id: w.text(b.ID), Version: b.Version, Ballot: w.ballot(b.Ballot),
		}}
	case *message.Promise:
		m.Body = &peerv1.ControlMessage_Promise{Promise: &peerv1.Promise{
			Version: b.Version, Ballot: w.ballot(b.Ballot), Ok: b.OK, Accepted: w.set(b.Accepted), Under: w.ballot(b.Under),
		}}
	case *message.Accept:
		m.Body = &peerv1.ControlMessage_Accept{Accept: &peerv1.Accept{Set: w.set(b.Set), Ballot: w.ballot(b.Ballot)}}
	case *message.Accepted:
		m.Body = &peerv1.ControlMessage_Accepted{Accepted: &peerv1.Accepted{
			Version: b.Version, Ballot: w.ballot(b.Ballot), Ok: b.OK,
		}}
	case *message.Holdings:
		m.Body = &peerv1.ControlMessage_Holdings{Holdings: &peerv1.Holdings{
			Seq: b.Seq, Full: b.Full, Held: each(b.Held, func(h *message.Holding) *peerv1.Holding {
				return &peerv1.Holding{
					Partition: w.number(h.Partition), Gen: h.Gen, Start: w.mark(h.Start), NextOwner: w.process(h.NextOwner), Replicated: h.Replicated, Loss: w.loss(h.Loss),
				}
			}),
		}}
	case *message.PendingGrants:
		m.Body = &peerv1.ControlMessage_PendingGrants{PendingGrants: &peerv1.PendingGrants{
			Seq: b.Seq, Grants: each(b.Grants, func(g *message.Granted) *peerv1.Granted {
				return &peerv1.Granted{Partition: w.number(g.Partition), Gen: g.Gen, Claimer: w.process(g.Claimer)}
			}),
		}}
	case *message.Claim:
		m.Body = &peerv1.ControlMessage_Claim{Claim: &peerv1.Claim{
			Probe: b.Probe,
			Id:    b.ID, Parts: each(b.Parts, func(c *message.Claimed) *peerv1.Claimed {
				return &peerv1.Claimed{Partition: w.number(c.Partition), Gen: c.Gen}
			}),
		}}
	case *message.Grant:
		m.Body = &peerv1.ControlMessage_Grant{Grant: w.grant(b)}
	case *message.Fetch:
		m.Body = &peerv1.ControlMessage_Fetch{Fetch: &peerv1.Fetch{
			Partition: w.number(b.Partition), Gen: b.Gen, State: w.mark(b.State),
		}}
	case *message.TransferBatch:
		m.Body = w.transferBatch(b)
	case *message.Receipt:
		m.Body = &peerv1.ControlMessage_Receipt{Receipt: &peerv1.Receipt{
			N: b.N, NotServing: b.NotServing, Rejected: each(b.Rejected, func(r *message.Rejection) *peerv1.Rejection {
				return &peerv1.Rejection{Part: w.number(r.Part), Known: w.epoch(r.Known), Owner: w.process(r.Owner)}
			}),
		}}
	case *message.Room:
		m.Body = &peerv1.ControlMessage_Room{Room: &peerv1.Room{
			KeyHi: each(b.Keys, func(k *bucket.Key) uint64 { return k.Hi }),
			KeyLo: each(b.Keys, func(k *bucket.Key) uint64 { return k.Lo }),
		}}
	case *message.Load:
		m.Body = &peerv1.ControlMessage_Load{Load: &peerv1.Load{
			Domain: w.text(b.Domain), Pool: w.text(b.Pool), Reporter: w.text(b.Reporter), Load: b.Load, Stamp: b.Stamp,
		}}
	case *message.Report:
		m.Body = &peerv1.ControlMessage_Report{Report: w.report(b)}
	case *message.Account:
		m.Body = &peerv1.ControlMessage_Account{Account: w.account(b)}
	case *message.TopAsk:
		m.Body = &peerv1.ControlMessage_TopAsk{TopAsk: &peerv1.TopAsk{Id: b.ID, By: uint32(b.By), Domain: w.text(b.Domain)}}
	case *message.Top:
		m.Body = &peerv1.ControlMessage_Top{Top: &peerv1.Top{
			Id: b.ID, Off: b.Off, CoversNs: uint64(b.Covers), Keys: each(b.Keys, func(k *message.TopKey) *peerv1.TopKey {
				return &peerv1.TopKey{KeyHi: k.Key.Hi, KeyLo: k.Key.Lo, Name: k.Name, Count: k.Count, Error: k.Error}
			}),
		}}
	case *message.AcceptLoss:
		m.Body = &peerv1.ControlMessage_AcceptLoss{AcceptLoss: &peerv1.AcceptLoss{}}
	case *message.FactsAsk:
		m.Body = &peerv1.ControlMessage_FactsAsk{FactsAsk: &peerv1.FactsAsk{Id: b.ID, History: b.History}}
	case *message.Facts:
		m.Body = &peerv1.ControlMessage_Facts{Facts: w.facts(b)}
	case *message.KeyAsk:
		m.Body = &peerv1.ControlMessage_KeyAsk{KeyAsk: &peerv1.KeyAsk{Id: b.ID, KeyHi: b.Key.Hi, KeyLo: b.Key.Lo, Limits: w.limit(b.Limits)}}
	case *message.KeyFacts:
		m.Body = &peerv1.ControlMessage_KeyFacts{KeyFacts: w.keyFacts(b)}
	default:
		w.err = fmt.Errorf("is no message that can travel")
	}
}

func (w *controlMessageWriter) grant(b *message.Grant) *peerv1.Grant {
	return &peerv1.Grant{
		Id: b.ID, Votes: b.Votes, Version: b.Version, Probe: b.Probe,
		Parts: each(b.Parts, func(g *message.GrantPart) *peerv1.GrantPart {
			return &peerv1.GrantPart{
				Partition: w.number(g.Partition), Ok: g.OK,
				Known: w.epoch(g.Known), Owner: w.process(g.Owner),
				Has: uint32(g.Has), State: w.mark(g.State), Owned: w.epoch(g.Owned), Granted: w.epoch(g.Granted),
			}
		}),
		Acked: each(b.Acked, func(a *message.Acked) *peerv1.Acked {
			return &peerv1.Acked{Boot: w.text(a.Boot), LeftNs: a.Left}
		}),
	}
}

// each returns what f makes of the elements of list.
func each[A, B any](list []A, f func(*A) B) []B {
	if len(list) == 0 {
		return nil
	}
	out := make([]B, len(list))
	for i := range list {
		out[i] = f(&list[i])
	}
	return out
}

// number returns v as it travels.
func (w *controlMessageWriter) number(v int) uint32 {
	if v < 0 || v > math.MaxInt32 {
		w.err = fmt.Errorf("number %d; want 0 to %d", v, math.MaxInt32)
	}
	return uint32(v)
}

// text returns what stands for s in this frame.
func (w *controlMessageWriter) text(s string) uint32 {
	if s == "" {
		return 0
	}
	id, ok := w.texts[s]
	if !ok {
		w.post.Texts = append(w.post.Texts, []byte(s))
		id = uint32(len(w.post.Texts))
		w.texts[s] = id
	}
	return id
}

// limit returns the number of l on this stream, and defines it if need be.
func (w *controlMessageWriter) limit(l *bucket.Limits) uint32 {
	if l == nil {
		return 0
	}
	id, fresh := w.limits.number(l)
	if fresh {
		w.post.Define = append(w.post.Define, definitionOf(id, l))
	}
	return id
}

func (w *controlMessageWriter) process(p message.Peer) *peerv1.Process {
	if p == (message.Peer{}) {
		return nil
	}
	return &peerv1.Process{Name: w.text(p.Name), Boot: w.text(p.Boot)}
}

func (w *controlMessageWriter) epoch(e message.Epoch) *peerv1.Epoch {
	if e == (message.Epoch{}) {
		return nil
	}
	return &peerv1.Epoch{Gen: e.Gen, Boot: w.text(e.Boot)}
}

func (w *controlMessageWriter) loss(l message.Loss) *peerv1.Loss {
	if l == (message.Loss{}) {
		return nil
	}
	return &peerv1.Loss{Of: w.epoch(l.Of), Sure: w.epoch(l.Sure), Has: w.epoch(l.Has), AgeNs: l.Age}
}

func (w *controlMessageWriter) mark(m message.Mark) *peerv1.Mark {
	if m == (message.Mark{}) {
		return nil
	}
	return &peerv1.Mark{Epoch: w.epoch(m.Epoch), Seq: m.Seq}
}

func (w *controlMessageWriter) ballot(b message.Ballot) *peerv1.Ballot {
	if b == (message.Ballot{}) {
		return nil
	}
	return &peerv1.Ballot{Round: b.Round, Boot: w.text(b.Boot)}
}

func (w *controlMessageWriter) set(s message.Set) *peerv1.VoterSet {
	if s.ID == "" && s.Version == 0 && len(s.Members) == 0 {
		return nil
	}
	return &peerv1.VoterSet{
		Id: w.text(s.ID), Version: s.Version,
		Members: each(s.Members, func(name *string) uint32 { return w.text(*name) }),
	}
}
