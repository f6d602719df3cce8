package snapshot

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Header says whose snapshot it is. The cluster's secret is not in it.
type Header struct {
	// Placement is ring.Placement of the program that wrote it.
	Placement int
	// Fingerprint tells the cluster's secret from others.
	Fingerprint [16]byte
	// Name and Boot are those of the process that wrote it.
	Name, Boot string
	// Begun is the time of day when it was begun.
	Begun time.Time
	// Partitions is how many there are, held here or not; at least 1.
	Partitions int
	// Set is the voter set that the process knew; zero if none.
	Set message.Set
}

// Section is what is known of one partition besides its counters.
type Section struct {
	Partition int
	// Mark is the point in the partition's history that its counters are from, Start
	// what the mark's epoch began with.
	Mark, Start message.Mark
	// Holding: the process held the partition, or was handing it over. Complete: all of
	// its counters are here.
	Holding, Complete bool
	// At is the time of day as of which the counters were exported.
	At time.Time
	// LostOf is the epoch whose counters are lost, LostAt the time of day when the partition was taken over without them; zero if none are.
	LostOf message.Epoch
	LostAt time.Time
}

// Age returns how long ago at now the counters were exported; never less than 0, so a
// clock that was set back makes nothing older.
func (s *Section) Age(now time.Time) time.Duration { return max(0, now.Sub(s.At)) }

// Totals count what a snapshot has.
type Totals struct {
	Sections, Images, Counters int
	// Bytes is the size of the file.
	Bytes int64
}

func (h *Header) validate() error {
	switch {
	case h.Placement < 0:
		return fmt.Errorf("placement %d is negative", h.Placement)
	case h.Partitions < 1:
		return fmt.Errorf("there are %d partitions; give at least 1", h.Partitions)
	case !storable(h.Begun):
		return fmt.Errorf("the time of day is %v, which no snapshot can tell; set the clock", h.Begun)
	}
	return nil
}

// storable reports whether t is a time that a machine's clock can show, in ns since 1970: about the years 1678 to 2262.
func storable(t time.Time) bool {
	return !t.Before(time.Unix(0, math.MinInt64)) && !t.After(time.Unix(0, math.MaxInt64))
}

// validate checks s against the number of partitions.
func (s *Section) validate(partitions int) error {
	switch {
	case s.Partition < 0 || s.Partition >= partitions:
		return fmt.Errorf("there is no partition %d among %d", s.Partition, partitions)
	case !storable(s.At), s.LostOf != (message.Epoch{}) && !storable(s.LostAt):
		return fmt.Errorf("partition %d: the time of day is %v, which no snapshot can tell; set the clock", s.Partition, s.At)
	}
	return nil
}

// imageHead comes before an image's data. Limits are the numbers of its sets plus one, 0 for none.
type imageHead struct {
	Counters int
	Limits   []uint32
}

// trailer ends a file. Sum is the checksum of all before it.
type trailer struct {
	Sections, Images, Counters int
	Sum                        uint32
}

// Reason says why a snapshot is rejected.
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

// Rejection is the error about a snapshot that must not be used, no part of it. The file
// stays where it is; see [Dir.SetAside].
type Rejection struct {
	// File is its path.
	File   string
	Reason Reason
	// Detail says what is wrong, Advice what to do.
	Detail, Advice string
}

func (r *Rejection) Error() string {
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

// judge returns why a file with this header is rejected, or nil.
func (w *Want) judge(h *Header) *Rejection {
	foreign := func(advice, format string, args ...any) *Rejection {
		return &Rejection{Reason: Foreign, Detail: fmt.Sprintf(format, args...), Advice: advice}
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

func (w *Want) judgeTime(t time.Time) *Rejection {
	ahead := t.Sub(w.Now)
	if ahead <= MaxAhead {
		return nil
	}
	return &Rejection{
		Reason: Future,
		Detail: fmt.Sprintf("it is from %v, %v ahead of this machine's clock", t.UTC().Format(time.RFC3339), ahead.Round(time.Second)),
		Advice: "set the clock right and start again, or go on without these counters",
	}
}

// reject turns what reading stumbled over into the error for the caller.
func reject(file string, err error) error {
	var (
		r *Rejection
		d *damage
		v errVersion
	)
	switch {
	case errors.As(err, &r):
		r.File = file
		return r
	case errors.As(err, &d):
		return &Rejection{file, Damaged, "it is damaged: " + d.Error(), "put a whole copy in its place, or go on without these counters"}
	case errors.As(err, &v):
		r := &Rejection{file, Newer, fmt.Sprintf("it has format version %d, this program knows %d", v, version),
			"start the version of sluice that wrote it, or go on without these counters"}
		if v < version {
			r.Reason = Older
		}
		return r
	}
	return fmt.Errorf("read snapshot %s: %w", file, bare(err))
}
