package audit

import (
	"cmp"
	"slices"
)

// Gap is a time in which checks of a key waited for a holder's answer.
type Gap struct {
	Key    string  `json:"key"`
	Length Seconds `json:"length"`
	// At is when it began, since the beginning of the run.
	At Seconds `json:"at"`
	// Ended: a holder's answer ended it. Otherwise the last check in it ended without
	// one, and none was under way then.
	Ended bool `json:"ended"`
}

// span is a gap in Unix ns.
type span struct {
	from, to int64
	ended    bool
}

// longestGap returns the longest time that a check of the key, whose records these are, is known to
// have waited for a holder. It begins when the check is sent. It ends with the holder's
// answer. When the check ends without one (an error, or an answer of on_failure), the gap goes on as long as
// further checks have none either, and a check that was sent meanwhile and has one ends it. While nobody asks, nobody waits:
// if no check was under way when a holder's answer was sent for, the gap ended with the last check that had none.
//
// It sorts the records by when they were answered.
func longestGap(records []record) span {
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.answered, b.answered) })
	var longest, open span
	waiting := false
	longer := func(s span) {
		if s.to-s.from > longest.to-longest.from {
			longest = s
		}
	}
	for i := range records {
		r := &records[i]
		if !r.held() {
			if !waiting {
				open = span{from: r.first}
				waiting = true
			}
			open.from, open.to = min(open.from, r.first), r.answered
			longer(open)
			continue
		}
		from := r.first
		if waiting && r.first <= open.to {
			from = min(from, open.from)
		}
		waiting = false
		longer(span{from, r.answered, true})
	}
	return longest
}
