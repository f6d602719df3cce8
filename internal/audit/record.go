package audit

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// outcome is the result of a check.
type outcome uint8

const (
	failed outcome = iota // no decision
	admitted
	denied
)

var outcomeNames = [...]string{failed: "error", admitted: "allowed", denied: "denied"}

// record is one check, kept until the end in 32 bytes, because there may be many millions. Times are Unix ns of a
// monotonic clock.
type record struct {
	first, sent, answered int64 // of the first attempt; of the last one
	key                   int32
	outcome               outcome
	source                uint8 // sluicev1.Source
	ambiguous             uint8 // attempts that may have been charged without a decision
}

// byOwner reports whether an owner of the key decided, also by a lease.
func (r *record) byOwner() bool {
	switch sluicev1.Source(r.source) {
	case sluicev1.Source_SOURCE_OWNED, sluicev1.Source_SOURCE_FORWARDED, sluicev1.Source_SOURCE_LEASE:
		return r.outcome != failed
	}
	return false
}

// leased reports whether it was decided by a lease.
func (r *record) leased() bool { return r.source == uint8(sluicev1.Source_SOURCE_LEASE) }

// byKey are the records of a run, sorted by key.
type byKey struct {
	records []record
	from    []int // the index of each key's first record, and the end
}

// group sorts the parts' records by key. It empties the parts.
func group(keys int, parts [][]record) *byKey {
	g := &byKey{from: make([]int, keys+1)}
	for _, p := range parts {
		for i := range p {
			g.from[p[i].key+1]++
		}
	}
	for i := range keys {
		g.from[i+1] += g.from[i]
	}
	g.records = make([]record, g.from[keys])
	next := slices.Clone(g.from[:keys])
	for j, p := range parts {
		for i := range p {
			at := &next[p[i].key]
			g.records[*at] = p[i]
			*at++
		}
		parts[j] = nil
	}
	return g
}

func (g *byKey) of(key int) []record { return g.records[g.from[key]:g.from[key+1]] }

// Check is one check of a run, a line of its log. Times are Unix ns of a monotonic clock.
type Check struct {
	// Key is the value of the key's descriptor, Spec the index of its spec.
	Key  string `json:"key"`
	Spec int    `json:"spec"`
	// First is when the first attempt was sent; Sent and Answered are the times of the last.
	First    int64  `json:"first_ns"`
	Sent     int64  `json:"sent_ns"`
	Answered int64  `json:"answered_ns"`
	Node     string `json:"node"`             // the address of the last attempt
	Decision string `json:"decision"`         // allowed, denied or error
	Source   string `json:"source,omitempty"` // of the decision, for example "forwarded"
	Owner    string `json:"owner,omitempty"`
	// Ambiguous attempts may have been charged without a decision.
	Ambiguous int    `json:"ambiguous,omitempty"`
	Attempts  int    `json:"attempts"`
	Error     string `json:"error,omitempty"` // of the last failed attempt
}

// ReadLog calls f for each check of a log, in about the order in which they were answered.
func ReadLog(r io.Reader, f func(Check) error) error {
	dec := json.NewDecoder(bufio.NewReader(r))
	for line := 1; ; line++ {
		var c Check
		switch err := dec.Decode(&c); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("log: line %d: %w", line, err)
		}
		if err := f(c); err != nil {
			return err
		}
	}
}

// logWriter writes the log of all callers. Nil writes nothing.
type logWriter struct {
	mu struct {
		sync.Mutex
		out *bufio.Writer
		err error
	}
}

func newLogWriter(w io.Writer) *logWriter {
	if w == nil {
		return nil
	}
	l := &logWriter{}
	l.mu.out = bufio.NewWriterSize(w, 1<<16)
	return l
}

func (l *logWriter) write(c *Check) {
	line, err := json.Marshal(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.mu.err == nil {
		_, err = l.mu.out.Write(append(line, '\n'))
	}
	if l.mu.err == nil {
		l.mu.err = err
	}
}

// close flushes, and returns the first error of a write.
func (l *logWriter) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(l.mu.err, l.mu.out.Flush()); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

// report judges the callers' records, and takes them away.
func (r *run) report(callers []*caller) *Report {
	out := &Report{Began: r.start, Took: Seconds(time.Since(r.start)), Run: r.name, Callers: len(callers),
		Sources: map[string]Decided{}, Violations: []Violation{}, Gaps: []Gap{}}
	var kinds errorKinds
	var line timeline
	parts := make([][]record, len(callers))
	asked := map[string]bool{}
	for i, c := range callers {
		kinds.merge(c.errors)
		line.merge(c.slots)
		out.ReroutedCalls += c.rerouted
		maps.Copy(asked, c.nodes.asked)
		parts[i], c.records = c.records, nil
	}
	out.Nodes = slices.Sorted(maps.Keys(asked))
	out.Errors, out.Timeline = append([]ErrorKind{}, kinds...), append([]Slot{}, line...)

	records := group(r.keys.len(), parts)
	out.count(records)
	r.judgeAll(out, records)
	out.Rate = float64(out.Checks) / max(1e-9, time.Duration(out.Took).Seconds())
	return out
}

// count fills in the counts over all keys.
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

// judgeAll judges every key that was checked.
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
			part.OverByOwners.add(v.overByOwners)
			part.Under.add(v.under)
			if v.reached {
				part.AtLimit++
			}
			name := r.keys.name(key)
			if v.over > 0 || v.under > 0 {
				out.Violations = worst(out.Violations, Violation{
					Key: name, Spec: part.Spec, Over: v.over, OverByOwners: v.overByOwners, Under: v.under,
					Admitted: v.admitted, Denied: v.denied, Ambiguous: v.ambiguous, DeniedAt: Seconds(max(0, v.underAt-r.began)),
				}, maxViolations, func(f Violation) int64 { return f.Over + f.Under })
			}
			if length := Seconds(v.gap.to - v.gap.from); length > 0 {
				g := Gap{Key: name, Length: length, At: Seconds(v.gap.from - r.began), Ended: v.gap.ended}
				out.Gaps = worst(out.Gaps, g, maxGaps, func(g Gap) int64 { return int64(g.Length) })
			}
		}
		out.Over.merge(part.Over)
		out.OverByOwners.merge(part.OverByOwners)
		out.Under.merge(part.Under)
		out.AtLimit += part.AtLimit
		out.Specs = append(out.Specs, part)
	}
}

// worst inserts x into the list, which is sorted by size, the largest first, and keeps its first n.
func worst[T any](list []T, x T, n int, size func(T) int64) []T {
	at, _ := slices.BinarySearchFunc(list, x, func(a, b T) int { return cmp.Compare(size(b), size(a)) })
	list = slices.Insert(list, at, x)
	return list[:min(n, len(list))]
}
