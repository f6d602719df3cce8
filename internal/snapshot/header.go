package snapshot

import (
	"fmt"
	"math"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// Header identifies the writer of a snapshot. It does not contain the cluster's secret.
type Header struct {
	// Placement is ring.Placement of the program that wrote it.
	Placement int
	// Fingerprint identifies the cluster's secret.
	Fingerprint [16]byte
	// Name and Boot are those of the process that wrote it.
	Name, Boot string
	// Begun is the time of day when it was begun.
	Begun time.Time
	// Partitions is the number of partitions of the cluster; at least 1.
	Partitions int
	// Set is the voter set that the process knew; zero if none.
	Set message.Set
}

// Section describes one partition.
type Section struct {
	Partition int
	// Mark is the point in the partition's history that its counters are from, Start the one that the mark's epoch began with.
	Mark, Start message.Mark
	// Owned: the process owned the partition, or was handing it over. Complete: all of its counters
	// are here. If not, none are, and Mark has the last epoch at which the process knew the
	// partition to be owned.
	Owned, Complete bool
	// At is the time of day as of which the counters were exported.
	At time.Time
	// LostOf is the epoch whose counters are lost, LostAt the time of day when the partition was taken over without them; zero
	// if none are.
	LostOf message.Epoch
	LostAt time.Time
}

// Age returns how long ago at now the counters were exported, at least 0: the clock may have been set back.
func (s *Section) Age(now time.Time) time.Duration { return max(0, now.Sub(s.At)) }

// Totals are the counts of a snapshot.
type Totals struct {
	Sections, Images, Counters int
	// Complete are the sections with counters.
	Complete int
	// Bytes is the size of the file.
	Bytes int64
}

// section counts s.
func (t *Totals) section(s *Section) {
	t.Sections++
	if s.Complete {
		t.Complete++
	}
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

// storable reports whether t fits into int64 nanoseconds since 1970, about the years 1678 to 2262.
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

// Reason is why a snapshot is rejected, for logs and metrics.
type Reason string

const (
	Damaged Reason = "damaged" // incomplete or changed, or never a snapshot
	Older   Reason = "older"   // a format of other programs
	Newer   Reason = "newer"   // the same
	Foreign Reason = "foreign" // of another node, cluster or placement
	Future  Reason = "future"  // ahead of the clock: the age of its counters would be negative
)

// Rejection is the error about a snapshot of which no part may be used. The file stays in its place; see [Dir.SetAside].
type Rejection struct {
	File           string // path
	Reason         Reason
	Detail, Advice string // what is wrong, and what to do
}

func (r *Rejection) Error() string {
	return fmt.Sprintf("snapshot %s: %s; %s", r.File, r.Detail, r.Advice)
}

// MaxAhead is how far the time of a snapshot may be ahead of the clock.
const MaxAhead = time.Minute

// Want has the values that a snapshot must match to be used.
type Want struct {
	Placement   int
	Fingerprint [16]byte
	Name        string
	Partitions  int
	Now         time.Time // time of day
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

// reject turns an error of reading into the error for the caller.
func reject(file string, err error) error {
	switch err := err.(type) {
	case *Rejection:
		err.File = file
		return err
	case *damage:
		return &Rejection{file, Damaged, "it is damaged: " + err.Error(), "replace it with an intact copy, or go on without these counters"}
	case errVersion:
		r := &Rejection{file, Newer, fmt.Sprintf("it has format version %d, this program knows %d", err, version),
			"start the version of sluice that wrote it, or go on without these counters"}
		if err < version {
			r.Reason = Older
		}
		return r
	}
	return fmt.Errorf("read snapshot %s: %w", file, bare(err))
}
