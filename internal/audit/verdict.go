package audit

import "github.com/sluice-project/sluice/internal/audit/model"

// verdict is what the log of one key shows.
type verdict struct {
	asked, admitted, denied int64
	// reached: a holder denied it at least once.
	reached bool
	// ambiguous attempts may each have charged one more.
	ambiguous int64
	// Units admitted above the limit: in all, and counting only what holders admitted.
	over, overHeld int64
	// Units that were free when a holder denied a check, at the worst denial.
	under   int64
	underAt int64 // when that was sent
	gap     span
}

// judge judges a key by its records, at least one.
func judge(m *model.Model, records []record) verdict {
	v := verdict{asked: records[0].first}
	var all, held, denials, charges []model.Span
	for i := range records {
		r := &records[i]
		v.asked = min(v.asked, r.first)
		v.ambiguous += int64(r.ambiguous)
		for range r.ambiguous {
			charges = append(charges, model.Span{From: r.first, To: model.Open})
		}
		made := model.Span{From: r.sent, To: r.answered}
		switch {
		case r.outcome == admitted && r.held():
			v.admitted++
			all, held, charges = append(all, made), append(held, made), append(charges, made)
		case r.outcome == admitted:
			v.admitted++
			all = append(all, made)
			// A share is charged to the holder when it can be reached again.
			charges = append(charges, model.Span{From: r.sent, To: model.Open})
		case r.outcome == denied:
			v.denied++
			// A lease that is used up denies what others may still spend.
			if r.held() && !r.lent() {
				denials = append(denials, made)
			}
		}
	}
	v.over = m.Over(v.asked, all)
	if v.overHeld = v.over; len(held) < len(all) {
		v.overHeld = m.Over(v.asked, held)
	}
	v.reached = len(denials) > 0
	var which int
	if v.under, which = m.Under(charges, denials); v.under > 0 {
		v.underAt = denials[which].From
	}
	v.gap = longestGap(records)
	return v
}
