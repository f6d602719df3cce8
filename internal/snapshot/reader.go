package snapshot

import (
	"fmt"
	"io"

	"github.com/sluicecluster/sluice/bucket"
)

// Reader reads a snapshot, all of which [Dir.Read] has verified: Next goes to a section, Image then reads its counters. It must
// be closed with Close. Not safe for concurrent use.
type Reader struct {
	file io.ReadSeekCloser
	name string
	size int64
	want Want

	records *recordReader
	header  Header
	totals  Totals
	unknown int
	err     error // io.EOF after the trailer

	// Of the last record.
	at      int64 // its offset
	kind    kind
	again   bool // it has not been used yet
	section Section
	image   bucket.Image

	inSection bool
	seen      []bool // partitions
	sets      []*bucket.Limits
}

// newReader verifies the whole file and then starts again. It closes file on error.
func newReader(file io.ReadSeekCloser, name string, size int64, want Want) (*Reader, error) {
	r := &Reader{file: file, name: name, size: size, want: want}
	if err := r.verify(); err != nil {
		file.Close()
		return nil, reject(name, err)
	}
	return r, nil
}

func (r *Reader) verify() error {
	if err := r.start(); err != nil {
		return err
	}
	for {
		if _, err := r.step(); err == io.EOF {
			return r.start()
		} else if err != nil {
			return err
		}
	}
}

// start goes to the first record after the header.
func (r *Reader) start() error {
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	records, err := newRecordReader(r.file, r.size)
	if err != nil {
		return err
	}
	k, payload, err := records.next()
	if err != nil {
		return err
	}
	var h Header
	if err := decodeMode.Unmarshal(payload, &h); k != kindHeader || err != nil || h.Partitions < 1 {
		return &damage{at: int64(preambleBytes), what: "its header cannot be read"}
	}
	if rejection := r.want.judge(&h); rejection != nil {
		return rejection
	}
	*r = Reader{
		file: r.file, name: r.name, size: r.size, want: r.want,
		records: records, header: h, seen: make([]bool, h.Partitions),
	}
	return nil
}

// Header returns the snapshot's header.
func (r *Reader) Header() Header { return r.header }

// Next goes to the next section, skipping unread images. After the last section it returns io.EOF.
func (r *Reader) Next() (Section, error) {
	for {
		if k, err := r.step(); err != nil {
			return Section{}, r.named(err)
		} else if k == kindSection {
			return r.section, nil
		}
	}
}

// Image returns the next counters of the section, valid until the next call; io.EOF after the last ones. Limits that this program
// cannot read are nil.
func (r *Reader) Image() (*bucket.Image, error) {
	k, err := r.step()
	if err == nil && k == kindSection {
		r.again, err = true, io.EOF
	}
	if err != nil {
		return nil, r.named(err)
	}
	return &r.image, nil
}

// Totals returns the counts so far; after the last section, those of the whole file.
func (r *Reader) Totals() Totals { return r.totals }

// Unknown returns how many sets of limits so far this program does not know. Their counters cannot be used.
func (r *Reader) Unknown() int { return r.unknown }

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// named gives an error the name of the file.
func (r *Reader) named(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return reject(r.name, err)
}

// step goes to the next section or image. It returns io.EOF after a valid trailer; errors stay.
func (r *Reader) step() (kind, error) {
	if r.again {
		r.again = false
		return r.kind, nil
	}
	for r.err == nil {
		r.at = r.records.at
		sum := r.records.sum
		k, payload, err := r.records.next()
		if err == nil {
			r.kind = k
			err = r.take(k, payload, sum)
		}
		if d, ok := err.(*damage); ok && r.inSection {
			d.what += fmt.Sprintf(", in or after partition %d", r.section.Partition)
		}
		r.err = err
		if err == nil && (k == kindSection || k == kindImage) {
			return k, nil
		}
	}
	return 0, r.err
}

// take decodes a record, which comes after bytes with that sum.
func (r *Reader) take(k kind, payload []byte, sum uint32) error {
	switch k {
	case kindLimits:
		return r.takeLimits(payload)
	case kindSection:
		return r.takeSection(payload)
	case kindImage:
		return r.takeImage(payload)
	case kindTrailer:
		return r.takeTrailer(payload, sum)
	}
	return r.damaged("a second header")
}

func (r *Reader) damaged(what string) error { return &damage{r.at, what} }

func (r *Reader) takeLimits(payload []byte) error {
	var number int
	text, err := decodeMode.UnmarshalFirst(payload, &number)
	if number == 0 {
		clear(r.sets)
		r.sets = r.sets[:0]
	}
	if err != nil || number != len(r.sets) || number >= mostSets {
		return r.damaged("limits are out of order")
	}
	set := parseLimits(text)
	if set == nil {
		r.unknown++
	}
	r.sets = append(r.sets, set)
	return nil
}

func (r *Reader) takeSection(payload []byte) error {
	var s Section
	if err := decodeMode.Unmarshal(payload, &s); err != nil || s.validate(r.header.Partitions) != nil {
		return r.damaged("a section cannot be read")
	}
	if rejection := r.want.judgeTime(s.At); rejection != nil {
		return rejection
	}
	if r.seen[s.Partition] {
		return r.damaged(fmt.Sprintf("a second section of partition %d", s.Partition))
	}
	r.section, r.inSection, r.seen[s.Partition] = s, true, true
	r.totals.section(&s)
	return nil
}

func (r *Reader) takeImage(payload []byte) error {
	var head imageHead
	data, err := decodeMode.UnmarshalFirst(payload, &head)
	if err != nil || !r.inSection || head.Counters < 0 || head.Counters > len(data) {
		return r.damaged("counters cannot be read")
	}
	limits := r.image.Limits[:0]
	for _, n := range head.Limits {
		switch {
		case n == 0:
			limits = append(limits, nil)
		case int64(n) > int64(len(r.sets)):
			return r.damaged("counters cannot be read")
		default:
			limits = append(limits, r.sets[n-1])
		}
	}
	r.image = bucket.Image{Limits: limits, Data: data, Counters: head.Counters}
	r.totals.Images++
	r.totals.Counters += head.Counters
	return nil
}

func (r *Reader) takeTrailer(payload []byte, sum uint32) error {
	var t trailer
	err := decodeMode.Unmarshal(payload, &t)
	switch {
	case err != nil || t.Sum != sum:
		return r.damaged("the checksum of the file is wrong")
	case t != trailer{r.totals.Sections, r.totals.Images, r.totals.Counters, sum}:
		return r.damaged("records are missing or repeated")
	case r.records.left != 0:
		return r.damaged("it goes on after its end")
	}
	r.totals.Bytes = r.size
	return io.EOF
}
