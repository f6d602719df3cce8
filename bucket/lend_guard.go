package bucket

// Guard is one of the things that keep loans from admitting more than their limits. Tables without one are for
// tests that show what it is for.
type Guard uint8

const (
	// BurstShrink: a bucket does not drain what is lent.
	BurstShrink Guard = 1 << iota
	// LateDate: a log dates what is lent at the end of the loan.
	LateDate
	// BoundaryClip: loans end with the windows that they are charged to.
	BoundaryClip
	// SettleOnce: a grant is returned once.
	SettleOnce
)

// paysAtOnce reports whether what is lent is charged to a state of p at once, rather than held.
func (without Guard) paysAtOnce(p *plan) bool {
	switch p.kind {
	case kindFlow:
		return without&BurstShrink != 0
	case kindLog, kindBins:
		return without&LateDate != 0
	}
	return p.windowed()
}
