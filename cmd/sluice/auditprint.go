package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
)

// auditText is a report for people.
func auditText(r *audit.Report) string {
	var b strings.Builder
	var w, specs, keys grid
	fmt.Fprintf(&w, "nodes\t%s\n", strings.Join(r.Nodes, ", "))
	fmt.Fprintf(&w, "run\t%s, %v by %d callers\n", r.Run, round(r.Took), r.Callers)
	fmt.Fprintf(&w, "checks\t%d, %.0f/s\n", r.Checks, r.Rate)
	fmt.Fprintf(&w, "latency\tp50 %v, p99 %v, max %v\n", round(r.Latency.P50), round(r.Latency.P99), round(r.Latency.Max))
	fmt.Fprintf(&w, "admitted\t%d%s\n", r.Admitted, bySource(r, func(d audit.Decided) int64 { return d.Admitted }))
	fmt.Fprintf(&w, "denied\t%d%s\n", r.Denied, bySource(r, func(d audit.Decided) int64 { return d.Denied }))
	fmt.Fprintf(&w, "over quota\t%s", keysText(r.Over))
	if r.Sources["share"].Admitted+r.Sources["open"].Admitted > 0 {
		fmt.Fprintf(&w, "; by what owners admitted, %s", keysText(r.OverByOwners))
	}
	fmt.Fprintln(&w)
	fmt.Fprintf(&w, "under quota\t%s, of %d that were denied\n", keysText(r.Under), r.AtLimit)
	fmt.Fprintf(&w, "errors\t%s\n", plural(r.FinalErrors, "check without an answer", "checks without an answer"))
	fmt.Fprintf(&w, "retries\t%s, %s sent to another node\n",
		plural(r.AmbiguousRetries, "ambiguous retry", "ambiguous retries"), plural(r.ReroutedCalls, "call", "calls"))
	fmt.Fprintf(&w, "longest gap\t%s\n", gapText(r))
	fmt.Fprintln(&specs, "LIMIT\tKEYS\tAT LIMIT\tADMITTED\tDENIED\tOVER\tUNDER")
	for _, s := range r.Specs {
		fmt.Fprintf(&specs, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", s.Spec, s.Keys, s.AtLimit, s.Admitted, s.Denied, s.Over.Keys, s.Under.Keys)
	}
	b.WriteString(w.String() + "\n" + specs.String())
	for _, k := range r.Errors {
		fmt.Fprintf(&b, "\nerror %s: %s, %s\n  %s\n", k.Kind, plural(k.Attempts, "attempt", "attempts"),
			plural(k.Final, "check without an answer", "checks without an answer"), k.Example)
	}
	if len(r.Violations) > 0 {
		b.WriteString("\nThe worst keys, with units that are certain:\n")
		fmt.Fprintln(&keys, "KEY\tLIMIT\tADMITTED\tDENIED\tOVER\tBY OWNERS\tUNDER\tAMBIGUOUS RETRIES")
		for _, f := range r.Violations {
			fmt.Fprintf(&keys, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", f.Key, f.Spec, f.Admitted, f.Denied, f.Over, f.OverByOwners, f.Under, f.Ambiguous)
		}
		b.WriteString(keys.String())
	}
	verdict, why, _ := strings.Cut(verdictText(r), ": ")
	fmt.Fprintf(&b, "\n%s: %s\n", paint(bold, paint(verdictColours[r.Verdict()], verdict)), why)
	return b.String()
}

// auditProgress is the text of one second.
func auditProgress(p audit.Progress) string {
	over := paint(green, "excess 0")
	if p.Over.Units > 0 {
		over = paint(red, "excess "+keysText(p.Over))
	}
	text := fmt.Sprintf("%s, %d/%d keys at limit, %d checks", over, p.Exhausted, p.Keys, p.Checks)
	if p.Errors > 0 {
		text += paint(red, fmt.Sprintf(", %d errors", p.Errors))
	}
	return text
}

// verdictColours are those of the last line.
var verdictColours = map[audit.Verdict]string{audit.Pass: green, audit.Fail: red, audit.Inconclusive: yellow}

// verdictText is the verdict with its reason.
func verdictText(r *audit.Report) string {
	keys := 0
	for _, s := range r.Specs {
		keys += s.Keys
	}
	reached := fmt.Sprintf("%d of %s reached their limit", r.AtLimit, plural(keys, "key", "keys"))
	v := r.Verdict()
	switch v {
	case audit.Pass:
		return fmt.Sprintf("%s: %s; none is over or under its quota, and every check was answered", v, reached)
	case audit.Fail:
		return fmt.Sprintf("%s: over quota %s, under quota %s, %s", v, keysText(r.Over), keysText(r.Under),
			plural(r.FinalErrors, "check without an answer", "checks without an answer"))
	}
	if r.Unexhausted > 0 {
		return fmt.Sprintf("%s: %s, and %d were not denied often enough within --exhaust-within. Give it more time, fewer --keys, more --rate or a longer --period",
			v, reached, r.Unexhausted)
	}
	return fmt.Sprintf("%s: %s; the others show nothing. Give --until-exhausted, fewer --keys, more --rate or more time", v, reached)
}

// bySource lists the counts of decisions by source.
func bySource(r *audit.Report, count func(audit.Decided) int64) string {
	parts := []string{fmt.Sprintf("%d by owners", count(r.Sources["owned"])+count(r.Sources["forwarded"]))}
	for _, s := range []string{"share", "closed", "open"} {
		if n := count(r.Sources[s]); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return ": " + strings.Join(parts, ", ")
}

func gapText(r *audit.Report) string {
	g := r.LongestGap()
	if g.Length == 0 {
		return "none"
	}
	end := ""
	if !g.Ended {
		end = ", ended by a check without an owner's answer"
	}
	return fmt.Sprintf("%v, key %s, from %s (%v into the run)%s", round(g.Length), g.Key,
		r.Began.Add(time.Duration(g.At)).Format("15:04:05.000"), round(g.At), end)
}

func keysText(k audit.Keys) string {
	if k.Keys == 0 {
		return "0 keys"
	}
	return fmt.Sprintf("%s by %s", plural(k.Keys, "key", "keys"), plural(k.Units, "unit", "units"))
}

func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// round drops digits of a duration that mean nothing to people.
func round(s audit.Seconds) time.Duration {
	d := time.Duration(s)
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
