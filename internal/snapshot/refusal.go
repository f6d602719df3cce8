package snapshot

import (
	"errors"
	"fmt"
	"time"
)

// Reason says why a snapshot is refused.
type Reason uint8

const (
	// Damaged files are torn or changed, or never were snapshots.
	Damaged Reason = iota + 1
	// Older and Newer are formats of other programs.
	Older
	Newer
	// Foreign files belong to another node or cluster, or are of another placement.
	Foreign
	// Future files are ahead of the clock: their counters would be less than nothing old.
	Future
)

var reasonNames = [...]string{Damaged: "damaged", Older: "older", Newer: "newer", Foreign: "foreign", Future: "future"}

// String returns r's name, for logs and metrics.
func (r Reason) String() string {
	if int(r) < len(reasonNames) && reasonNames[r] != "" {
		return reasonNames[r]
	}
	return fmt.Sprintf("unknown (%d)", r)
}

// Refusal is the error about a snapshot that must not be used, no part of it. The file
// stays where it is; see [Dir.SetAside].
type Refusal struct {
	// File is its path.
	File   string
	Reason Reason
	// Detail says what is wrong, Advice what to do.
	Detail, Advice string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("snapshot %s: %s; %s", r.File, r.Detail, r.Advice)
}

// MaxAhead is how far the time of a snapshot may be ahead of the clock.
const MaxAhead = time.Minute

// Want is what a snapshot must match to be used.
type Want struct {
	Placement   int
	Fingerprint [16]byte
	Name        string
	Partitions  int
	// Now is the time of day.
	Now time.Time
}

// judge returns why a file with this header is refused, or nil.
func (w *Want) judge(h *Header) *Refusal {
	foreign := func(advice, format string, args ...any) *Refusal {
		return &Refusal{Reason: Foreign, Detail: fmt.Sprintf(format, args...), Advice: advice}
	}
	const own = "give each node a directory of its own and keep it, or go on without these counters"
	switch {
	case h.Fingerprint != w.Fingerprint:
		return foreign("start with the secret that it was written under, or go on without these counters",
			"it is from a cluster whose secret has fingerprint %x, ours has %x", h.Fingerprint[:4], w.Fingerprint[:4])
	case h.Name != w.Name:
		return foreign(own, "it was written by node %q, this is %q", h.Name, w.Name)
	case h.Placement != w.Placement:
		return foreign("start the version of sluice that wrote it, or go on without these counters",
			"its keys are placed by placement %d, ours by %d", h.Placement, w.Placement)
	case h.Partitions != w.Partitions:
		return foreign("start with the number it was written with, or go on without these counters",
			"it has %d partitions, we have %d", h.Partitions, w.Partitions)
	}
	return w.judgeTime(h.Begun)
}

func (w *Want) judgeTime(t time.Time) *Refusal {
	ahead := t.Sub(w.Now)
	if ahead <= MaxAhead {
		return nil
	}
	return &Refusal{
		Reason: Future,
		Detail: fmt.Sprintf("it is from %v, %v ahead of this machine's clock", t.UTC().Format(time.RFC3339), ahead.Round(time.Second)),
		Advice: "set the clock right and start again, or go on without these counters",
	}
}

// refuse turns what reading stumbled over into the error for the caller.
func refuse(file string, err error) error {
	var (
		r *Refusal
		d *damage
		v errVersion
	)
	switch {
	case errors.As(err, &r):
		r.File = file
		return r
	case errors.As(err, &d):
		return &Refusal{file, Damaged, "it is damaged: " + d.Error(), "put a whole copy in its place, or go on without these counters"}
	case errors.As(err, &v):
		r := &Refusal{file, Newer, fmt.Sprintf("it has format version %d, this program knows %d", v, version),
			"start the version of sluice that wrote it, or go on without these counters"}
		if v < version {
			r.Reason = Older
		}
		return r
	}
	return fmt.Errorf("read snapshot %s: %w", file, bare(err))
}
