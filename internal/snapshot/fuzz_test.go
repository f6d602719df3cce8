package snapshot

import (
	"encoding/binary"
	"reflect"
	"slices"
	"testing"
)

// FuzzRead: no bytes make reading panic, and what is accepted is written again as the same. With mend
// the checksums are made right first, or hardly anything would get past them.
func FuzzRead(f *testing.F) {
	c := example()
	data := encode(f, c)
	f.Add(data, false)
	f.Add(data, true)
	f.Add(data[:len(data)/2], true)
	list := records(data)
	f.Add(slices.Concat(list[0], list[1], list[len(list)-1]), true)
	f.Fuzz(func(t *testing.T, data []byte, mend bool) {
		if mend {
			data = mended(data)
		}
		r, err := open(data, c.want())
		if err != nil {
			if r != nil {
				t.Fatal("a reader beside an error")
			}
			return
		}
		got, err := read(r)
		if err != nil {
			t.Fatalf("verified, and then: %v", err)
		}
		again, err := open(encode(t, got), c.want())
		if err != nil {
			t.Fatal(err)
		}
		if back, err := read(again); err != nil || !reflect.DeepEqual(back, got) {
			t.Fatalf("%v\nread    %+v\nwritten %+v", err, back, got)
		}
	})
}

// FuzzFlip: a file that differs from a whole one in any stretch of bytes is rejected.
func FuzzFlip(f *testing.F) {
	c := example()
	whole := encode(f, c)
	f.Add(uint16(20), []byte{1})
	f.Add(uint16(0), []byte("sluice\r\n\x02"))
	f.Fuzz(func(t *testing.T, at uint16, mask []byte) {
		data := slices.Clone(whole)
		for i, b := range mask {
			data[(int(at)+i)%len(data)] ^= b
		}
		if slices.Equal(data, whole) {
			return
		}
		if _, err := open(data, c.want()); err == nil {
			t.Fatalf("accepted: %q", data)
		}
	})
}

// mended returns data with every checksum right, as far as records can be told apart.
func mended(data []byte) []byte {
	if len(data) < preambleBytes {
		return data
	}
	out := preamble(binary.LittleEndian.Uint32(data[len(magic):]))
	sum := checksum(0, out)
	for data = data[preambleBytes:]; len(data) >= recordBytes; {
		n := int(binary.LittleEndian.Uint32(data[1:]))
		if n > len(data)-recordBytes {
			break
		}
		r := slices.Clone(data[:5+n])
		if kind(r[0]) == kindTrailer && n >= 4 {
			binary.LittleEndian.PutUint32(r[len(r)-4:], sum)
		}
		sum = checksum(sum, r)
		out = append(out, r...)
		out = binary.LittleEndian.AppendUint32(out, checksum(0, r))
		data = data[recordBytes+n:]
	}
	return append(out, data...)
}
