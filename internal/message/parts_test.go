package message

import (
	"encoding/binary"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/sluicecluster/sluice/test/seeded"
)

func genParts(t *rapid.T) Parts {
	epoch := func(what string) Epoch {
		return Epoch{rapid.Uint64().Draw(t, what), rapid.SampledFrom([]string{"", "a-1", "b-2", "c"}).Draw(t, what)}
	}
	list := make(Parts, rapid.IntRange(0, 5).Draw(t, "parts"))
	for i := range list {
		list[i] = Part{
			Partition: rapid.Int().Draw(t, "partition"), Kind: Kind(rapid.Byte().Draw(t, "kind")), Epoch: epoch("epoch"),
			InitialSync: rapid.Uint64().Draw(t, "sync"), Seq: rapid.Uint64().Draw(t, "seq"), Counters: rapid.Int().Draw(t, "counters"), Bytes: rapid.Int().Draw(t, "bytes"),
			Begin: rapid.Bool().Draw(t, "begin"), End: rapid.Bool().Draw(t, "end"),
		}
		if p := &list[i]; rapid.Bool().Draw(t, "more") {
			p.Start, p.Next, p.Sum = Mark{epoch("start"), rapid.Uint64().Draw(t, "start")}, epoch("next"), rapid.Uint64().Draw(t, "sum")
			p.Loss = Loss{epoch("last"), epoch("certain"), epoch("complete"), rapid.Int64().Draw(t, "age"), InSync{rapid.Uint64().Draw(t, "number"), [4]uint64{rapid.Uint64().Draw(t, "in sync")}}, epoch("owned"), [4]Epoch{epoch("before")}}
		}
	}
	return list
}

// TestParts: decoding gives what was encoded, whatever a later version adds to each part, and of no shorter data anything.
func TestParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genParts(t)
		data, _ := want.MarshalBinary()
		got := Parts{{Kind: 3, Begin: true}} // of an earlier batch
		if err := got.UnmarshalBinary(data); err != nil || len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("%v: got %+v, want %+v", err, got, want)
		}
		for n := range data {
			if err := new(Parts).UnmarshalBinary(data[:n]); err == nil {
				t.Fatalf("%d of %d bytes were accepted", n, len(data))
			}
		}
		if err := new(Parts).UnmarshalBinary(append(data, 0)); err == nil {
			t.Fatal("a byte too many was accepted")
		}
		if len(want) != 1 {
			return
		}
		// The part is all that comes after the boot ids and the number.
		size := data[len(data)-partSize(want):]
		binary.LittleEndian.PutUint16(size, binary.LittleEndian.Uint16(size)+2)
		if err := got.UnmarshalBinary(append(data, 7, 7)); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("with an addition: %v: got %+v, want %+v", err, got, want)
		}
	})
}

// partSize is the size of the only part of list.
func partSize(list Parts) int {
	return len(new(partWriter).part(nil, &list[0]))
}

// FuzzParts decodes anything, and what it has decoded stays the same.
func FuzzParts(f *testing.F) {
	data, _ := Parts{{Partition: 7, Kind: Close, Epoch: Epoch{3, "a-1"}, Begin: true, Sum: 9, Next: Epoch{4, "b-2"}}, {Kind: Drop}}.MarshalBinary()
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var list, again Parts
		if list.UnmarshalBinary(data) != nil {
			return
		}
		data, _ = list.MarshalBinary()
		if err := again.UnmarshalBinary(data); err != nil || len(list) > 0 && !reflect.DeepEqual(list, again) {
			t.Fatalf("%v: %+v, then %+v", err, list, again)
		}
	})
}
