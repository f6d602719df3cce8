package main

import (
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/limiter"
)

// mailbox takes what other nodes send: loads, and questions that people ask, are for the doors, all else is for the cluster node.
type mailbox struct{ *node }

// Deliver implements peer.Mailbox.
func (m mailbox) Deliver(e message.Envelope) {
	switch b := e.Body.(type) {
	case *message.Load:
		if e.To.Boot == m.boot {
			m.takeLoad(b)
		}
	case *message.TopAsk, *message.Top, *message.FactsAsk, *message.Facts, *message.KeyAsk, *message.KeyFacts:
		if e.To.Boot == m.boot {
			m.inquiries.deliver(e)
		}
	default:
		m.cluster.Deliver(e)
	}
}

func (n *node) takeLoad(b *message.Load) {
	n.service.TakeLoad(limiter.LoadReport{Domain: b.Domain, Pool: b.Pool, Reporter: b.Reporter, Load: b.Load, Stamp: b.Stamp})
}

// spreadLoad tells the other nodes of a report that this one was given.
func (n *node) spreadLoad(r limiter.LoadReport) {
	n.cluster.Tell(&message.Load{Domain: r.Domain, Pool: r.Pool, Reporter: r.Reporter, Load: r.Load, Stamp: r.Stamp})
}
