package bucket

// Reservable returns -1 if units can be set aside in all limits. Otherwise which is the index, in the arguments of NewLimits, of
// the first limit where they cannot, and why is the reason.
func (l *Limits) Reservable() (which int, why string) {
	for i := range l.plans {
		if why = l.plans[i].notReservable(); why != "" {
			return l.Place(i), why
		}
	}
	return -1, ""
}

// notReservable returns why no units of p can be set aside, "" if they can.
func (p *plan) notReservable() string {
	const depend = " makes checks under it depend on each other"
	switch {
	case p.kind == kindUnlimited:
		return ""
	case p.queue:
		return "a queue delays what it admits, so it cannot set units aside"
	case p.blocks:
		return "block_for" + depend
	case p.minInterval > 0:
		return "min_interval" + depend
	case p.countDenied:
		return "count_denied" + depend
	case p.cost > p.limit:
		return "one unit is more than the limit"
	}
	return ""
}
