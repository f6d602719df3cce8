package snapshot

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/fxamacker/cbor/v2"
)

const (
	magic = "sluice\r\n"
	// version is raised when files change so that programs of the last version would misread them. Development versions before
	// the first release wrote 1.
	version = 2

	preambleBytes = len(magic) + 4 + 4 // before the records
	recordBytes   = 1 + 4 + 4          // of a record around its payload
)

type kind byte

const (
	kindHeader kind = iota + 1
	kindLimits
	kindSection
	kindImage
	kindTrailer
)

// MaxImageBytes bounds the data of one image, with the numbers of its limits.
const MaxImageBytes = 16 << 20

// kinds are the names of records, for errors, and bound their payloads: those written, and the memory that a length in a file can
// make us allocate.
var kinds = [...]struct {
	name string
	most int
}{
	kindHeader:  {"the header", 1 << 20},
	kindLimits:  {"a set of limits", 64 << 10},
	kindSection: {"a section", 64 << 10},
	kindImage:   {"an image", MaxImageBytes},
	kindTrailer: {"the trailer", 1 << 10},
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

func preamble(version uint32) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(magic), version)
	return binary.LittleEndian.AppendUint32(b, checksum(0, b))
}

// recordWriter frames records.
type recordWriter struct {
	w    *bufio.Writer
	sum  uint32 // over all bytes written but the records' checksums
	size int64
}

func newRecordWriter(w io.Writer) *recordWriter {
	rw := &recordWriter{w: bufio.NewWriterSize(w, 64<<10)}
	rw.write(preamble(version))
	return rw
}

// write adds to sum. bufio returns its error from the next record or from Flush.
func (rw *recordWriter) write(b []byte) {
	rw.sum = checksum(rw.sum, b)
	rw.size += int64(len(b))
	rw.w.Write(b)
}

// record writes one record whose payload is the CBOR of v and then tail.
func (rw *recordWriter) record(k kind, v any, tail []byte) error {
	head, err := encodeMode.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", kinds[k].name, err)
	}
	n := len(head) + len(tail)
	if n > kinds[k].most {
		return fmt.Errorf("%s has %d bytes, more than the %d allowed", kinds[k].name, n, kinds[k].most)
	}
	var front [5]byte
	front[0] = byte(k)
	binary.LittleEndian.PutUint32(front[1:], uint32(n))
	sum := checksum(checksum(checksum(0, front[:]), head), tail)
	rw.write(front[:])
	rw.write(head)
	rw.write(tail)
	var back [4]byte
	binary.LittleEndian.PutUint32(back[:], sum)
	rw.size += int64(len(back))
	_, err = rw.w.Write(back[:])
	return err
}

// recordReader reads and verifies records.
type recordReader struct {
	r        *bufio.Reader
	at, left int64  // offset of the next byte, and the number of bytes from there
	sum      uint32 // as recordWriter's, of the bytes read
	buf      []byte
}

// errVersion is another format version.
type errVersion uint32

func (v errVersion) Error() string { return fmt.Sprintf("format version %d", uint32(v)) }

// newRecordReader reads the preamble. Its errors are an errVersion, a damage or those of reading.
func newRecordReader(r io.Reader, size int64) (*recordReader, error) {
	rr := &recordReader{r: bufio.NewReaderSize(r, 64<<10), left: size}
	b := make([]byte, preambleBytes)
	if err := rr.read(b); err != nil {
		return nil, err
	}
	v := binary.LittleEndian.Uint32(b[len(magic):])
	switch {
	case string(b[:len(magic)]) != magic:
		return nil, &damage{at: 0, what: "it does not begin as a snapshot does"}
	case string(preamble(v)) != string(b):
		return nil, &damage{at: 0, what: "the checksum of its first bytes is wrong"}
	case v != version:
		return nil, errVersion(v)
	}
	rr.sum = checksum(0, b)
	return rr, nil
}

// next reads one record. The payload is valid until the next call.
func (rr *recordReader) next() (kind, []byte, error) {
	start := rr.at
	var front [5]byte
	if err := rr.read(front[:]); err != nil {
		return 0, nil, err
	}
	k, n := kind(front[0]), int64(binary.LittleEndian.Uint32(front[1:]))
	switch {
	case k < kindHeader || k > kindTrailer:
		return 0, nil, &damage{at: start, what: "there is no such kind of record"}
	case n > int64(kinds[k].most):
		return 0, nil, &damage{at: start, what: "a record is longer than allowed"}
	case n+4 > rr.left:
		return 0, nil, &damage{at: start, what: endsEarly}
	}
	if int64(cap(rr.buf)) < n {
		rr.buf = make([]byte, n)
	}
	payload := rr.buf[:n]
	var back [4]byte
	if err := rr.read(payload); err != nil {
		return 0, nil, err
	}
	if err := rr.read(back[:]); err != nil {
		return 0, nil, err
	}
	sum := checksum(checksum(0, front[:]), payload)
	if binary.LittleEndian.Uint32(back[:]) != sum {
		return 0, nil, &damage{at: start, what: "a checksum is wrong"}
	}
	rr.sum = checksum(checksum(rr.sum, front[:]), payload)
	return k, payload, nil
}

const endsEarly = "it ends before it should"

func (rr *recordReader) read(b []byte) error {
	n, err := io.ReadFull(rr.r, b)
	rr.at += int64(n)
	rr.left -= int64(n)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return &damage{at: rr.at, what: endsEarly}
	}
	return err
}

// damage is an error in a file, and its offset.
type damage struct {
	at   int64
	what string
}

func (d *damage) Error() string { return fmt.Sprintf("%s (byte %d)", d.what, d.at) }

// Payloads are CBOR (RFC 8949) of the structs of this package, with the names of their fields; algorithms and the like are
// written as in rule files.
var (
	encodeMode = must(cbor.EncOptions{Time: cbor.TimeRFC3339Nano, TextMarshaler: cbor.TextMarshalerTextString}.EncMode())
	decodeMode = must(cbor.DecOptions{
		TextUnmarshaler: cbor.TextUnmarshalerTextString, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		MaxArrayElements: mostSets, MaxNestedLevels: 8, UTF8: cbor.UTF8DecodeInvalid, IndefLength: cbor.IndefLengthForbidden,
	}.DecMode())
)

func must[M any](mode M, err error) M {
	if err != nil {
		panic(err) // the options contradict each other
	}
	return mode
}
