package snapshot

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestEveryFlip: whatever bit of a file changes, it is rejected before anything of it is handed out.
func TestEveryFlip(t *testing.T) {
	c := example()
	data := encode(t, c)
	for i := range data {
		for _, flip := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255} {
			damaged := bytes.Clone(data)
			damaged[i] ^= flip
			_, err := open(damaged, c.want())
			if rejected(t, err, Damaged).File == "" {
				t.Fatalf("byte %d: %v names no file", i, err)
			}
		}
	}
}

// TestEveryTruncation: a file that ends early, goes on or lost its beginning is rejected.
func TestEveryTruncation(t *testing.T) {
	c := example()
	data := encode(t, c)
	for n := range data {
		_, err := open(data[:n], c.want())
		rejected(t, err, Damaged)
		if n > 0 {
			_, err = open(data[n:], c.want())
			rejected(t, err, Damaged)
		}
		// As file systems do that extend a file before they write it.
		if tail := make([]byte, len(data)-n); !bytes.Equal(data[n:], tail) {
			_, err = open(slices.Concat(data[:n], tail), c.want())
			rejected(t, err, Damaged)
		}
	}
	for _, more := range []string{"\x00", "\n", string(data)} {
		_, err := open(append(bytes.Clone(data), more...), c.want())
		rejected(t, err, Damaged)
	}
}

// records cuts a file after its first bytes and after every record.
func records(data []byte) [][]byte {
	list := [][]byte{data[:preambleBytes]}
	for at := preambleBytes; at < len(data); {
		n := recordBytes + int(binary.LittleEndian.Uint32(data[at+1:]))
		list = append(list, data[at:at+n])
		at += n
	}
	return list
}

// TestRecordsOutOfPlace: sound records at wrong places are rejected, too: swapped, missing, double,
// or of another snapshot of the same shape.
func TestRecordsOutOfPlace(t *testing.T) {
	c := example()
	twin := c.Parts[0].Images[0]
	twin.Data = []byte("COUNTERS, as bucket writes them")
	c.Parts[0].Images = append(c.Parts[0].Images, twin, twin)
	c.Parts[0].Images[2].Data = bytes.ToUpper(twin.Data)
	list := records(encode(t, c))
	other := example()
	other.Parts = c.Parts
	other.Header.Boot = "18f3-78"
	others := records(encode(t, other))
	if len(list) != len(others) || len(list) < 10 {
		t.Fatalf("%d and %d records", len(list), len(others))
	}
	try := func(what string, i, j int, list [][]byte) {
		t.Helper()
		if _, err := open(slices.Concat(list...), c.want()); err == nil {
			t.Fatalf("%s (%d, %d): accepted", what, i, j)
		} else {
			rejected(t, err, Damaged)
		}
	}
	for i := range list {
		try("missing", i, 0, slices.Delete(slices.Clone(list), i, i+1))
		try("double", i, 0, slices.Insert(slices.Clone(list), i, list[i]))
		if 0 < i && i < len(list)-1 {
			try("another's beginning", i, 0, slices.Concat(others[:i+1], list[i+1:]))
		}
		for j := range i {
			if bytes.Equal(list[i], list[j]) {
				continue
			}
			swapped := slices.Clone(list)
			swapped[i], swapped[j] = list[j], list[i]
			try("swapped", i, j, swapped)
		}
	}
}

// TestDamageIsLocated: the message says which partition was hit, and where in the file.
func TestDamageIsLocated(t *testing.T) {
	c := example()
	data := encode(t, c)
	at := bytes.Index(data, []byte("as bucket writes"))
	data[at]++
	_, err := open(data, c.want())
	for _, part := range []string{"counters.snapshot", "checksum", "partition 5", "byte ", "without these counters"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: says nothing of %q", err, part)
		}
	}
}

// TestLengthsAreNotTrusted: a length in the file, however well its checksum fits, makes nobody allocate
// what is not there.
func TestLengthsAreNotTrusted(t *testing.T) {
	c := example()
	list := records(encode(t, c))
	for k := range kinds {
		for _, n := range []uint32{1 << 10, 1 << 24, 1<<24 + 1, 1 << 31, 1<<32 - 1} {
			front := binary.LittleEndian.AppendUint32([]byte{byte(k)}, n)
			data := slices.Concat(list[0], list[1], front, make([]byte, 100))
			if got := allocated(t, data, c); got > 1<<20 {
				t.Errorf("kind %d, length %d: %d bytes allocated", k, n, got)
			}
		}
	}
	// The bytes are there, and sound, but too many for one record.
	long := append(binary.LittleEndian.AppendUint32([]byte{byte(kindImage)}, 32<<20), make([]byte, 32<<20)...)
	long = binary.LittleEndian.AppendUint32(long, checksum(0, long))
	if got := allocated(t, slices.Concat(list[0], list[1], long), c); got > 1<<20 {
		t.Errorf("a long record: %d bytes allocated", got)
	}
}

// allocated returns the memory that rejecting data takes.
func allocated(t *testing.T, data []byte, c content) uint64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := open(data, c.want())
	runtime.ReadMemStats(&after)
	rejected(t, err, Damaged)
	return after.TotalAlloc - before.TotalAlloc
}
