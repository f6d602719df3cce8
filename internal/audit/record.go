package audit

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// outcome is what became of a check.
type outcome uint8

const (
	failed outcome = iota // no answer
	admitted
	denied
)

var outcomeNames = [...]string{failed: "error", admitted: "allowed", denied: "denied"}

// record is one check, kept until the end: 32 bytes, because there may be
// many millions. Times are Unix ns of the audit's clock, which never steps.
type record struct {
	// first is when it was sent first, sent when the call that brought the answer was.
	first, sent, answered int64
	key                   int32
	outcome               outcome
	source                uint8 // sluicev1.Source
	// ambiguous counts the attempts that may have been charged without an answer.
	ambiguous uint8
}

// held reports whether an owner of the key decided, be it by what it has granted.
func (r *record) held() bool { return r.outcome != failed && isOwner(r.source) }

// granted reports whether it was decided by what the owner has granted.
func (r *record) granted() bool { return r.source == uint8(sluicev1.Source_SOURCE_LEASE) }

func isOwner(source uint8) bool {
	switch sluicev1.Source(source) {
	case sluicev1.Source_SOURCE_HELD, sluicev1.Source_SOURCE_FORWARDED, sluicev1.Source_SOURCE_LEASE:
		return true
	}
	return false
}

// byKey are the records of a run, sorted by key.
type byKey struct {
	records []record
	// from is where the records of each key begin, and where the last end.
	from []int
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
	next := append([]int(nil), g.from[:keys]...)
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

// Check is one check of a run, a line of its log. Times are Unix ns; their differences
// are those of a clock that never steps.
type Check struct {
	// Key is the value of the key's descriptor, Spec the place of its spec.
	Key  string `json:"key"`
	Spec int    `json:"spec"`
	// First is when it was sent first, Sent when the attempt was that Answered ended.
	First    int64 `json:"first_ns"`
	Sent     int64 `json:"sent_ns"`
	Answered int64 `json:"answered_ns"`
	// Node is the address that was asked last.
	Node string `json:"node"`
	// Decision is allowed, denied or error.
	Decision string `json:"decision"`
	// Source and Owner are the answer's, for example "forwarded" and "n2".
	Source string `json:"source,omitempty"`
	Owner  string `json:"owner,omitempty"`
	// Ambiguous attempts may have been charged without an answer.
	Ambiguous int `json:"ambiguous,omitempty"`
	// Attempts are all calls that were made for it.
	Attempts int `json:"attempts"`
	// Error is that of the last failed attempt.
	Error string `json:"error,omitempty"`
}

// ReadLog calls f for each check of a log, in the order in which they were answered or nearly so.
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

// close flushes, and returns the first error that there was.
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
