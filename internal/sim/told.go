package sim

import (
	"slices"

	"github.com/sluice-project/sluice/internal/message"
)

// told names a process and an epoch that it was told of.
type told struct {
	process *process
	epoch   message.Epoch
}

// noteTold notes which epochs p is told of by those who own or granted them.
func (w *world) noteTold(p *process, e message.Envelope) {
	if e.To != p.self || e.Lineage != p.set.ID {
		return
	}
	tell := func(part int, gen uint64, boot string) {
		w.history(e.Lineage, part).told[told{p, message.Epoch{Gen: gen, Boot: boot}}] = true
	}
	switch b := e.Body.(type) {
	case *message.Holdings:
		for _, x := range b.Held {
			tell(x.Partition, x.Gen, e.From.Boot)
		}
	case *message.News:
		for _, x := range b.Grants {
			tell(x.Partition, x.Gen, x.Claimer.Boot)
		}
	case *message.Grant:
		for _, x := range b.Parts {
			for _, epoch := range []message.Epoch{x.Known, x.Owned, x.Granted} {
				tell(x.Partition, epoch.Gen, epoch.Boot)
			}
		}
	}
}

// promiseForgotten reports whether the owner of t could not know of before: it was told of it by nobody, all who owned or granted that were stopped
// or gone when the claim of t began, and one of them has crashed. Where nobody is stopped, none who granted the claim was told either.
func (w *world) promiseForgotten(h *history, before, t *term) bool {
	asked, claims := h.asked[t.state.Mark.Epoch]
	knew := func(p *process) bool {
		return p.runs() && !p.paused && (!claims || p == t.process || p.resumed <= asked)
	}
	if !w.stops && slices.ContainsFunc(h.granted[t.state.Mark.Epoch], func(p *process) bool { return h.told[told{p, before.state.Mark.Epoch}] }) {
		return false
	}
	all := append(slices.Clone(h.granted[before.state.Mark.Epoch]), before.process)
	return !h.told[told{t.process, before.state.Mark.Epoch}] && !slices.ContainsFunc(all, knew) &&
		slices.ContainsFunc(all, func(p *process) bool { return p.crashed })
}
