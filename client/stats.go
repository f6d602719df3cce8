package client

import (
	"errors"
	"sync/atomic"
)

// Stats counts since Dial, but for Nodes.
type Stats struct {
	// Allowed and Denied are answers by who gave them.
	Allowed, Denied map[Source]uint64
	// Invalid are calls that were wrong, Failed those with another error.
	Invalid, Failed uint64
	// Retries are attempts after the first.
	Retries uint64
	// Frames were sent; checks ÷ frames is how well calls travel together.
	Frames uint64
	// StreamsLost are streams that ended other than by Close.
	StreamsLost uint64
	// Nodes are those of the cluster that are asked now; 0 while only the target is.
	Nodes int
}

type counters struct {
	allowed, denied                               [sources]atomic.Uint64
	invalid, failed, retries, frames, streamsLost atomic.Uint64
}

// count notes an answer. d counts if err is nil.
func (s *counters) count(d *Decision, err error) {
	if err != nil {
		if _, ok := errors.AsType[*Error](err); ok {
			s.invalid.Add(1)
		} else {
			s.failed.Add(1)
		}
		return
	}
	if d.Allowed {
		s.allowed[d.Source].Add(1)
	} else {
		s.denied[d.Source].Add(1)
	}
}

// Stats returns what c has counted.
func (c *Client) Stats() Stats {
	s := &c.stats
	r := Stats{
		Allowed: map[Source]uint64{}, Denied: map[Source]uint64{},
		Invalid: s.invalid.Load(), Failed: s.failed.Load(), Retries: s.retries.Load(),
		Frames: s.frames.Load(), StreamsLost: s.streamsLost.Load(), Nodes: len(c.fleet.Load().nodes),
	}
	for i := range s.allowed {
		if n := s.allowed[i].Load(); n > 0 {
			r.Allowed[Source(i)] = n
		}
		if n := s.denied[i].Load(); n > 0 {
			r.Denied[Source(i)] = n
		}
	}
	return r
}
