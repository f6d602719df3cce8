package audit

import (
	"cmp"
	"slices"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// report judges what the callers have kept, and takes their records away.
func (r *run) report(callers []*caller) *Report {
	out := &Report{Began: r.start, Took: Seconds(time.Since(r.start)), Run: r.name, Callers: len(callers),
		Sources: map[string]Decided{}, Faults: []Fault{}, Gaps: []Gap{}}
	var kinds errorKinds
	var line timeline
	parts := make([][]record, len(callers))
	asked := map[string]bool{}
	for i, c := range callers {
		kinds.merge(c.errors)
		line.merge(c.slots)
		out.ReroutedCalls += c.rerouted
		for addr := range c.nodes.asked {
			asked[addr] = true
		}
		parts[i], c.records = c.records, nil
	}
	for addr := range asked {
		out.Nodes = append(out.Nodes, addr)
	}
	slices.Sort(out.Nodes)
	out.Errors, out.Timeline = append([]ErrorKind{}, kinds...), append([]Slot{}, line...)

	records := group(r.keys.len(), parts)
	out.count(records)
	r.judgeAll(out, records)
	out.Rate = float64(out.Checks) / max(1e-9, time.Duration(out.Took).Seconds())
	return out
}

// count fills in what does not depend on keys.
func (r *Report) count(g *byKey) {
	var by [256]Decided // by source
	var latencies []int64
	for i := range g.records {
		rec := &g.records[i]
		r.AmbiguousRetries += int64(rec.ambiguous)
		switch rec.outcome {
		case admitted:
			r.Admitted++
			by[rec.source].Admitted++
		case denied:
			r.Denied++
			by[rec.source].Denied++
		default:
			r.FinalErrors++
			continue
		}
		latencies = append(latencies, rec.answered-rec.first)
	}
	r.Checks = int64(len(g.records))
	for s, d := range by {
		if d != (Decided{}) {
			r.Sources[sourceName(sluicev1.Source(s))] = d
		}
	}
	if len(latencies) == 0 {
		return
	}
	slices.Sort(latencies)
	at := func(share float64) Seconds { return Seconds(latencies[int(share*float64(len(latencies)-1))]) }
	r.Latency = Latency{P50: at(0.5), P99: at(0.99), Max: at(1)}
}

// judgeAll judges every key that was asked for.
func (r *run) judgeAll(out *Report, g *byKey) {
	for i, s := range r.cfg.Specs {
		part := SpecReport{Spec: s.String(), Keys: s.Keys}
		for key := r.keys.from[i]; key < r.keys.from[i+1]; key++ {
			records := g.of(int(key))
			if len(records) == 0 {
				continue
			}
			v := judge(r.models[i], records)
			part.Admitted += v.admitted
			part.Denied += v.denied
			part.Over.add(v.over)
			part.OverHeld.add(v.overHeld)
			part.Under.add(v.under)
			if v.reached {
				part.AtLimit++
			}
			name := r.keys.name(key)
			out.fault(Fault{
				Key: name, Spec: part.Spec, Over: v.over, OverHeld: v.overHeld, Under: v.under,
				Admitted: v.admitted, Denied: v.denied, Ambiguous: v.ambiguous, DeniedAt: Seconds(max(0, v.underAt-r.began)),
			})
			out.gap(Gap{Key: name, Length: Seconds(v.gap.to - v.gap.from), At: Seconds(v.gap.from - r.began), Ended: v.gap.ended})
		}
		out.Over.merge(part.Over)
		out.OverHeld.merge(part.OverHeld)
		out.Under.merge(part.Under)
		out.AtLimit += part.AtLimit
		out.Specs = append(out.Specs, part)
	}
}

// fault lists f if it is among the worst.
func (r *Report) fault(f Fault) {
	if f.Over == 0 && f.Under == 0 {
		return
	}
	r.Faults = worst(r.Faults, f, MaxFaults, func(a, b Fault) int { return cmp.Compare(b.Over+b.Under, a.Over+a.Under) })
}

// gap lists g if it is among the longest.
func (r *Report) gap(g Gap) {
	if g.Length == 0 {
		return
	}
	r.Gaps = worst(r.Gaps, g, MaxGaps, func(a, b Gap) int { return cmp.Compare(b.Length, a.Length) })
}

// worst inserts x into the sorted list and keeps its first n.
func worst[T any](list []T, x T, n int, compare func(a, b T) int) []T {
	at, _ := slices.BinarySearchFunc(list, x, compare)
	if at == n {
		return list
	}
	list = slices.Insert(list, at, x)
	return list[:min(n, len(list))]
}
