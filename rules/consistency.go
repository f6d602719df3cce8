package rules

import (
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// leastEventual is the shortest period that can be decided in eventual mode: nodes tell each other of it every 50 ms.
const leastEventual = time.Second

// checkConsistency refuses what eventual mode cannot keep: a node that decides alone can count in a window that all
// nodes see begin and end, and nothing else.
func (p *parser) checkConsistency(d *descriptor) {
	f, ok := d.fields["consistency"]
	if !ok || d.rule.Consistency != Eventual {
		return
	}
	refuse := func(field, format string, args ...any) { p.FaultAt(f.Line, d.path+"."+field, format, args...) }
	if len(d.limits) > 1 {
		refuse("consistency", "eventual takes one limit, and the rule has %d", len(d.limits))
	}
	if r, ok := d.fields["replication"]; ok && d.rule.Replication == ReplicateSync {
		p.FaultAt(r.Line, d.path+".replication", "sync makes no sense beside consistency: eventual, which answers before anybody else knows")
	}
	if o, ok := d.fields["on_lost_state"]; ok && d.rule.OnLostState == LostDeny {
		p.FaultAt(o.Line, d.path+".on_lost_state", "deny makes no sense beside consistency: eventual, where every node decides alone: use fresh, or leave it out")
	}
	if e, ok := d.fields["elastic"]; ok {
		p.FaultAt(e.Line, d.path+".elastic", "has no effect beside consistency: eventual: give up one of them")
	}
	for i := range d.limits {
		l := &d.limits[i]
		switch {
		case l.Algorithm != bucket.FixedWindow:
			refuse("consistency", "eventual needs a fixed_window, not a %s", l.Algorithm)
		case l.Align == bucket.AlignFirstHit:
			refuse("consistency", "eventual needs a window that begins for all nodes at once: align epoch or calendar, not first_hit")
		case l.Align != bucket.AlignCalendar && l.Period < leastEventual:
			refuse("consistency", "eventual needs a period of 1s or more, not %v", l.Period)
		case l.Soft != 0:
			refuse("consistency", "eventual has no soft margin: leave soft out")
		case l.MinInterval != 0:
			refuse("consistency", "eventual keeps no min_interval: leave it out")
		case l.Cost > 1:
			refuse("consistency", "eventual takes no cost of a limit: leave it out")
		}
	}
}
