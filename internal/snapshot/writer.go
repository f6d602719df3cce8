package snapshot

import (
	"errors"
	"fmt"
	"io"

	"github.com/sluicecluster/sluice/bucket"
)

// disk has the steps of writing, so that tests can stop between any two.
type disk interface {
	// create makes the temporary file, empty, whatever was there.
	create() (file, error)
	// publish puts the temporary file in the snapshot's place.
	publish() error
	// sync makes the published file durable.
	sync() error
	// discard removes the temporary file.
	discard() error
}

type file interface {
	io.WriteCloser
	Sync() error
}

// Writer writes one snapshot: a Section, its Images, the next Section, and at last Commit. Nothing is visible before Commit
// returns nil. An error stays: every later call returns it. It must be created with [Dir.Create] and ended with Commit or Abort.
// Not safe for concurrent use.
type Writer struct {
	disk   disk
	path   string // for errors
	file   file
	header Header
	// release lets another Writer begin; nil after the call.
	release func()

	records *recordWriter
	totals  Totals
	sets    numbering
	seen    []bool   // partitions
	numbers []uint32 // working space
	err     error
}

var errEnded = errors.New("it has been ended")

func newWriter(d disk, path string, h Header, release func()) (*Writer, error) {
	w := &Writer{disk: d, path: path, header: h, release: release, sets: newNumbering()}
	if err := w.step(w.begin); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

func (w *Writer) begin() (err error) {
	if err = w.header.validate(); err != nil {
		return err
	}
	w.seen = make([]bool, w.header.Partitions)
	if w.file, err = w.disk.create(); err != nil {
		return err
	}
	w.records = newRecordWriter(w.file)
	return w.records.record(kindHeader, &w.header, nil)
}

// Section begins the next section; each partition has one at most.
func (w *Writer) Section(s Section) error {
	return w.step(func() error { return w.section(&s) })
}

// step does a step unless one has failed before.
func (w *Writer) step(do func() error) error {
	if w.err != nil {
		return w.err
	}
	if err := do(); err != nil {
		return w.fail(err)
	}
	return nil
}

func (w *Writer) section(s *Section) error {
	if err := s.validate(w.header.Partitions); err != nil {
		return err
	}
	if w.seen[s.Partition] {
		return fmt.Errorf("partition %d has been written already", s.Partition)
	}
	w.seen[s.Partition] = true
	w.totals.section(s)
	return w.records.record(kindSection, s, nil)
}

// Image adds counters to the section; im may be reused afterwards. It takes at most MaxImageBytes, so split a section's counters
// into images of about 1 MiB each.
func (w *Writer) Image(im *bucket.Image) error {
	return w.step(func() error { return w.image(im) })
}

func (w *Writer) image(im *bucket.Image) error {
	switch {
	case w.totals.Sections == 0:
		return errors.New("an image comes before the first section")
	case im.Counters < 0 || im.Counters > len(im.Data):
		return fmt.Errorf("an image of %d bytes cannot have %d counters", len(im.Data), im.Counters)
	}
	if len(w.sets.byPlace) >= maxSets {
		w.sets = newNumbering()
	}
	head := imageHead{Counters: im.Counters, Limits: w.numbers[:0]}
	for _, l := range im.Limits {
		if l == nil {
			head.Limits = append(head.Limits, 0)
			continue
		}
		number, text, err := w.sets.number(l)
		if err != nil {
			return err
		}
		if number >= mostSets {
			return fmt.Errorf("an image has more than %d sets of limits; write smaller ones", mostSets)
		}
		if text != nil {
			if err := w.records.record(kindLimits, number, text); err != nil {
				return err
			}
		}
		head.Limits = append(head.Limits, uint32(number)+1)
	}
	w.numbers = head.Limits
	w.totals.Images++
	w.totals.Counters += im.Counters
	return w.records.record(kindImage, &head, im.Data)
}

// Commit completes the snapshot and replaces the last one. After an error the directory has one of the two, complete.
func (w *Writer) Commit() error {
	defer w.Abort()
	return w.step(w.commit)
}

func (w *Writer) commit() error {
	err := w.records.record(kindTrailer, &trailer{w.totals.Sections, w.totals.Images, w.totals.Counters, w.records.sum}, nil)
	if err != nil {
		return err
	}
	if err := w.records.w.Flush(); err != nil {
		return err
	}
	// The name must not reach the disk before the bytes do.
	if err := w.file.Sync(); err != nil {
		return err
	}
	f := w.file
	w.file = nil
	if err := f.Close(); err != nil {
		return err
	}
	if err := w.disk.publish(); err != nil {
		return err
	}
	w.totals.Bytes = w.records.size
	w.err = errEnded
	w.end()
	return w.disk.sync()
}

// Abort drops the snapshot; the last one stays. After Commit it does nothing.
func (w *Writer) Abort() {
	if w.file != nil {
		w.file.Close()
		w.file = nil
	}
	if w.release != nil {
		w.disk.discard() // if it fails, Open does it
		w.end()
	}
	if w.err == nil {
		w.fail(errEnded)
	}
}

func (w *Writer) end() {
	w.release()
	w.release = nil
}

// Totals returns the counts so far; Bytes is known after Commit.
func (w *Writer) Totals() Totals { return w.totals }

func (w *Writer) fail(err error) error {
	w.err = fmt.Errorf("write snapshot %s: %w", w.path, bare(err))
	return w.err
}
