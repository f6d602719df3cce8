package peer

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// controlMessageReader understands the frames of one control messages stream. What it returns shares no
// memory with a frame.
type controlMessageReader struct {
	from        message.Peer
	definitions definitions
	texts       []string // of this frame

	// Of the control message that is being read: what is wrong with it, and whether a newer
	// minor must have written it.
	err     error
	unknown bool
}

// read appends the messages of m to out, in order. skipped are control messages that this node does not
// know how to read.
func (r *controlMessageReader) read(m *peerv1.Post, out []message.Envelope) (_ []message.Envelope, skipped int, err error) {
	if m.Hello != nil {
		return out, 0, errors.New("a second hello")
	}
	if len(m.ControlMessages) > maxControlMessages {
		return out, 0, fmt.Errorf("control messages of %d control messages; want at most %d", len(m.ControlMessages), maxControlMessages)
	}
	if err := r.definitions.define(m.Define); err != nil {
		return out, 0, fmt.Errorf("control: %w", err)
	}
	r.texts = r.texts[:0]
	for _, t := range m.Texts {
		r.texts = append(r.texts, string(t))
	}
	defer func() { clear(r.texts) }()
	for i, l := range m.ControlMessages {
		r.err, r.unknown = nil, false
		e := message.Envelope{From: r.from, To: r.process(l.To), ClusterID: r.text(l.ClusterId), Body: r.body(l)}
		switch {
		case r.err != nil:
			return out, skipped, fmt.Errorf("control, control message %d: %w", i, r.err)
		case r.unknown:
			skipped++
		default:
			out = append(out, e)
		}
	}
	return out, skipped, nil
}

func (r *controlMessageReader) body(l *peerv1.ControlMessage) message.Body {
	switch b := l.Body.(type) {
	case *peerv1.ControlMessage_Heartbeat:
		m := b.Heartbeat
		return &message.Heartbeat{
			Sent: m.Sent, Set: r.set(m.Set), Wish: known(r, m.Wish, message.Leave), Seen: m.Seen,
			PendingGrants: m.PendingGrants, Unconfirmed: m.Unconfirmed, Isolated: m.Isolated, Lease: m.LeaseNs,
			NoQuorum: m.NoQuorum, Expect: int(m.Expect), Founding: m.Founding,
			Void: each(m.Void, func(id *uint32) string { return r.text(*id) }),
		}
	case *peerv1.ControlMessage_Ack:
		m := b.Ack
		return &message.Ack{Sent: m.Sent, Got: m.Got, OK: m.Ok, Set: r.set(m.Set), PendingGrants: m.PendingGrants, Unconfirmed: m.Unconfirmed, Lease: m.LeaseNs}
	case *peerv1.ControlMessage_Prepare:
		m := b.Prepare
		return &message.Prepare{ID: r.text(m.Id), Version: m.Version, Ballot: r.ballot(m.Ballot)}
	case *peerv1.ControlMessage_Promise:
		m := b.Promise
		return &message.Promise{
			Version: m.Version, Ballot: r.ballot(m.Ballot), OK: m.Ok, Accepted: r.set(m.Accepted), Under: r.ballot(m.Under),
		}
	case *peerv1.ControlMessage_Accept:
		m := b.Accept
		return &message.Accept{Set: r.set(m.Set), Ballot: r.ballot(m.Ballot)}
	case *peerv1.ControlMessage_Accepted:
		m := b.Accepted
		return &message.Accepted{Version: m.Version, Ballot: r.ballot(m.Ballot), OK: m.Ok}
	case *peerv1.ControlMessage_Holdings:
		m := b.Holdings
		return &message.Holdings{Seq: m.Seq, Full: m.Full, Held: each(m.Held, func(h **peerv1.Holding) message.Holding {
			return message.Holding{
				Partition: r.number((*h).Partition), Gen: (*h).Gen, Start: r.mark((*h).Start), NextOwner: r.process((*h).NextOwner),
				Replicated: (*h).Replicated,
				Loss: message.Loss{
					Of: r.epoch((*h).Loss.GetOf()), Sure: r.epoch((*h).Loss.GetSure()), Has: r.epoch((*h).Loss.GetHas()), Age: (*h).Loss.GetAgeNs(),
				},
			}
		})}
	case *peerv1.ControlMessage_PendingGrants:
		m := b.PendingGrants
		return &message.PendingGrants{Seq: m.Seq, Grants: each(m.Grants, func(g **peerv1.Granted) message.Granted {
			return message.Granted{Partition: r.number((*g).Partition), Gen: (*g).Gen, Claimer: r.process((*g).Claimer)}
		})}
	case *peerv1.ControlMessage_Claim:
		m := b.Claim
		return &message.Claim{ID: m.Id, Probe: m.Probe, Parts: each(m.Parts, func(c **peerv1.Claimed) message.Claimed {
			return message.Claimed{Partition: r.number((*c).Partition), Gen: (*c).Gen}
		})}
	case *peerv1.ControlMessage_Grant:
		return r.grant(b.Grant)
	case *peerv1.ControlMessage_Fetch:
		m := b.Fetch
		return &message.Fetch{Partition: r.number(m.Partition), Gen: m.Gen, State: r.mark(m.State)}
	case *peerv1.ControlMessage_TransferBatch:
		return r.transferBatch(b.TransferBatch)
	case *peerv1.ControlMessage_Receipt:
		m := b.Receipt
		return &message.Receipt{N: m.N, NotServing: m.NotServing, Rejected: each(m.Rejected, func(f **peerv1.Rejection) message.Rejection {
			return message.Rejection{Part: r.number((*f).Part), Known: r.epoch((*f).Known), Owner: r.process((*f).Owner)}
		})}
	case *peerv1.ControlMessage_Room:
		m := b.Room
		if len(m.KeyHi) != len(m.KeyLo) {
			r.err = fmt.Errorf("room: key_hi has %d values and key_lo %d; want as many", len(m.KeyHi), len(m.KeyLo))
			return nil
		}
		room := &message.Room{Keys: each(m.KeyLo, func(lo *uint64) bucket.Key { return bucket.Key{Lo: *lo} })}
		for i, hi := range m.KeyHi {
			room.Keys[i].Hi = hi
		}
		return room
	case *peerv1.ControlMessage_Load:
		m := b.Load
		return &message.Load{Domain: r.text(m.Domain), Pool: r.text(m.Pool), Reporter: r.text(m.Reporter), Load: m.Load, Stamp: m.Stamp}
	case *peerv1.ControlMessage_Report:
		return r.report(b.Report)
	case *peerv1.ControlMessage_Account:
		return r.account(b.Account)
	case *peerv1.ControlMessage_TopAsk:
		m := b.TopAsk
		return &message.TopAsk{ID: m.Id, By: known(r, m.By, uint8(math.MaxUint8)), Domain: r.text(m.Domain)}
	case *peerv1.ControlMessage_Top:
		m := b.Top
		return &message.Top{ID: m.Id, Off: m.Off, Covers: int64(m.CoversNs), Keys: each(m.Keys, func(k **peerv1.TopKey) message.TopKey {
			return message.TopKey{Key: bucket.Key{Hi: (*k).KeyHi, Lo: (*k).KeyLo}, Name: (*k).Name, Count: (*k).Count, Error: (*k).Error}
		})}
	case *peerv1.ControlMessage_AcceptLoss:
		return &message.AcceptLoss{}
	case *peerv1.ControlMessage_FactsAsk:
		return &message.FactsAsk{ID: b.FactsAsk.Id, History: b.FactsAsk.History}
	case *peerv1.ControlMessage_Facts:
		return r.facts(b.Facts)
	case *peerv1.ControlMessage_KeyAsk:
		m := b.KeyAsk
		return &message.KeyAsk{ID: m.Id, Key: bucket.Key{Hi: m.KeyHi, Lo: m.KeyLo}, Limits: r.limit(&m.Limits)}
	case *peerv1.ControlMessage_KeyFacts:
		return r.keyFacts(b.KeyFacts)
	}
	r.unknown = true
	return nil
}

func (r *controlMessageReader) grant(m *peerv1.Grant) *message.Grant {
	return &message.Grant{
		ID: m.Id, Votes: m.Votes, Version: m.Version, Probe: m.Probe,
		Parts: each(m.Parts, func(g **peerv1.GrantPart) message.GrantPart {
			return message.GrantPart{
				Partition: r.number((*g).Partition), OK: (*g).Ok,
				Known: r.epoch((*g).Known), Owner: r.process((*g).Owner),
				Has: known(r, (*g).Has, message.Complete), State: r.mark((*g).State), Owned: r.epoch((*g).Owned), Granted: r.epoch((*g).Granted),
			}
		}),
		Acked: each(m.Acked, func(a **peerv1.Acked) message.Acked {
			return message.Acked{Boot: r.text((*a).Boot), Left: (*a).LeftNs}
		}),
	}
}

// known returns v as a value of one of internal/message's lists, 0 to last. A
// control message with any other is skipped.
func known[E ~uint8](r *controlMessageReader, v uint32, last E) E {
	if v > uint32(last) {
		r.unknown = true
	}
	return E(v)
}

func (r *controlMessageReader) number(v uint32) int {
	if v > math.MaxInt32 {
		r.err = fmt.Errorf("number %d; want 0 to %d", v, math.MaxInt32)
	}
	return int(v)
}

func (r *controlMessageReader) text(id uint32) string {
	if id == 0 {
		return ""
	}
	if uint64(id) > uint64(len(r.texts)) {
		r.err = fmt.Errorf("text %d of %d", id, len(r.texts))
		return ""
	}
	return r.texts[id-1]
}

func (r *controlMessageReader) process(m *peerv1.Process) message.Peer {
	return message.Peer{Name: r.text(m.GetName()), Boot: r.text(m.GetBoot())}
}

func (r *controlMessageReader) epoch(m *peerv1.Epoch) message.Epoch {
	return message.Epoch{Gen: m.GetGen(), Boot: r.text(m.GetBoot())}
}

func (r *controlMessageReader) mark(m *peerv1.Mark) message.Mark {
	return message.Mark{Epoch: r.epoch(m.GetEpoch()), Seq: m.GetSeq()}
}

func (r *controlMessageReader) ballot(m *peerv1.Ballot) message.Ballot {
	return message.Ballot{Round: m.GetRound(), Boot: r.text(m.GetBoot())}
}

func (r *controlMessageReader) set(m *peerv1.VoterSet) message.Set {
	return message.Set{
		ID: r.text(m.GetId()), Version: m.GetVersion(),
		Members: each(m.GetMembers(), func(id *uint32) string { return r.text(*id) }),
	}
}
