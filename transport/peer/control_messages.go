package peer

import (
	"slices"

	"github.com/sluice-project/sluice/internal/message"
)

// Bounds of control messages.
const (
	// maxControlMessages is the most control messages that a Server takes in one frame.
	maxControlMessages = 4096
	// maxWaiting and maxWaitingBytes bound each of an outbox's two queues.
	maxWaiting      = 1024
	maxWaitingBytes = 8 << 20
	// maxControlBytes is about how much goes into one frame, definitions of limits
	// aside. A larger message has a frame of its own.
	maxControlBytes = 256 << 10
)

// control messages are messages that wait, the oldest first.
type controlMessages struct {
	list  []controlMessage
	bytes int
}

type controlMessage struct {
	message.Envelope
	bytes int
}

// push adds e if there is room. In an empty queue there is, however large e is.
func (q *controlMessages) push(e message.Envelope) bool {
	bytes := weight(e.Body)
	if n := len(q.list); n >= maxWaiting || n > 0 && q.bytes+bytes > maxWaitingBytes {
		return false
	}
	q.list = append(q.list, controlMessage{e, bytes})
	q.bytes += bytes
	return true
}

func (q *controlMessages) len() int { return len(q.list) }

// drop empties q and returns how many there were.
func (q *controlMessages) drop() int {
	n := len(q.list)
	*q = controlMessages{}
	return n
}

// takeFrame moves what goes into one frame to batch: control first, then transfer batches.
func takeFrame(batch []message.Envelope, control, transferBatches *controlMessages) []message.Envelope {
	bytes, limits := 0, 0
	for _, q := range []*controlMessages{control, transferBatches} {
		n := 0
		for i := range q.list {
			l := &q.list[i]
			limits += defines(l.Body)
			// The numbers of more limits might change their meaning within the frame.
			if len(batch) > 0 && (bytes+l.bytes > maxControlBytes || limits > maxGather) {
				break
			}
			bytes += l.bytes
			q.bytes -= l.bytes
			batch = append(batch, l.Envelope)
			n++
		}
		left := n < len(q.list)
		q.list = slices.Delete(q.list, 0, n)
		if left {
			break
		}
	}
	return batch
}

// bulky reports whether control messages of b may be many and long: no heartbeat waits behind them.
func bulky(b message.Body) bool {
	switch b.(type) {
	case *message.TransferBatch, *message.Report, *message.Account, *message.Top, *message.Facts:
		return true
	}
	return false
}

// defines returns the most sets of limits that a control message of b may have to define.
func defines(b message.Body) int {
	switch b := b.(type) {
	case *message.TransferBatch:
		return len(b.Image.Limits)
	case *message.Report:
		return len(b.Lines)
	case *message.KeyAsk:
		return 1
	}
	return 0
}

// What parts of a control message take on the wire at most, roughly, texts aside.
const (
	bytesPerControlMessage = 128
	bytesPerElement        = 120
	bytesPerPart           = 136
	bytesPerCounts         = 12 // many are 0
)

// weight is about how many bytes a control message of b takes.
func weight(b message.Body) int {
	n := 0 // elements of the longest list
	switch b := b.(type) {
	case *message.Heartbeat:
		return bytesPerControlMessage + weighSet(b.Set)
	case *message.Ack:
		return bytesPerControlMessage + weighSet(b.Set)
	case *message.Promise:
		return bytesPerControlMessage + weighSet(b.Accepted)
	case *message.Accept:
		return bytesPerControlMessage + weighSet(b.Set)
	case *message.TransferBatch:
		return bytesPerControlMessage + bytesPerPart*len(b.Parts) + 5*len(b.Image.Limits) + len(b.Image.Data)
	case *message.Load:
		return bytesPerControlMessage + len(b.Domain) + len(b.Pool) + len(b.Reporter)
	case *message.Top:
		n := bytesPerControlMessage
		for i := range b.Keys {
			n += bytesPerElement + len(b.Keys[i].Name)
		}
		return n
	case *message.Facts:
		n := bytesPerControlMessage + 16*len(b.Node.Latency.Bounds) + bytesPerCounts*len(b.Node.History)
		for i := range b.Node.ByRule {
			r := &b.Node.ByRule[i]
			n += bytesPerElement + len(r.Domain) + len(r.Name) + bytesPerCounts*len(r.History)
		}
		return n
	case *message.KeyFacts:
		n = len(b.Key.Limits)
	case *message.Holdings:
		n = len(b.Held)
	case *message.PendingGrants:
		n = len(b.Grants)
	case *message.Claim:
		n = len(b.Parts)
	case *message.Grant:
		n = len(b.Parts) + len(b.Acked)
	case *message.Receipt:
		n = len(b.Rejected)
	case *message.Room:
		n = len(b.Keys)
	case *message.Report:
		n = len(b.Lines)
	case *message.Account:
		n = len(b.Lines)
	}
	return bytesPerControlMessage + bytesPerElement*n
}

func weighSet(s message.Set) int {
	n := len(s.ID)
	for _, m := range s.Members {
		n += len(m) + 10
	}
	return n
}
