package bucket

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// TestSlabs fills blocks of random sizes with their numbers, and finds these unchanged; at last no memory is in use.
func TestSlabs(t *testing.T) {
	type block struct {
		ref  blockRef
		size int
		mark byte
	}
	s, r := newSlabs(), rand.New(rand.NewPCG(1, 2))
	memory := func(b block) []byte { return unsafe.Slice((*byte)(b.ref.at()), b.size) }
	var blocks []block
	drop := func(i int) {
		b := blocks[i]
		for at, x := range memory(b) {
			if x != b.mark {
				t.Fatalf("byte %d of a block of %d is %d, want %d", at, b.size, x, b.mark)
			}
		}
		s.put(b.ref, b.size)
		blocks[i] = blocks[len(blocks)-1]
		blocks = blocks[:len(blocks)-1]
	}
	most := int64(0)
	for step := range 40_000 {
		if grow := step/5000%2 == 0; len(blocks) == 0 || r.IntN(10) < 7 == grow {
			size := 1 + r.IntN(1<<(4+r.IntN(14)))
			b := block{s.get(size), size, byte(step)}
			if uint64(b.ref)%16 != 0 {
				t.Fatalf("a block of %d at %x is not aligned", size, b.ref)
			}
			for at := range memory(b) {
				memory(b)[at] = b.mark
			}
			blocks = append(blocks, b)
		} else {
			drop(r.IntN(len(blocks)))
		}
		most = max(most, s.bytes())
	}
	for len(blocks) > 0 {
		drop(len(blocks) - 1)
	}
	if left := s.bytes(); left > int64(len(blockSizes))*slabBytes || left*3 > most {
		t.Errorf("%d bytes are left of %d", left, most)
	}
}

// TestClasses: every size has a class that it fits into, and is accounted for with what it takes of a page.
func TestClasses(t *testing.T) {
	for n := 1; n < 2<<20; n += 1 + n/5000 {
		class := classOf(n)
		if class >= len(blockSizes) {
			if size := leastLarge << (class - len(blockSizes)); n <= blockSizes[len(blockSizes)-1] || n > size || size > leastLarge && n <= size/2 {
				t.Fatalf("%d bytes are in the class of %d", n, size)
			}
			continue
		}
		if blockSizes[class] < n || class > 0 && blockSizes[class-1] >= n {
			t.Fatalf("%d bytes are in the class of %d", n, blockSizes[class])
		}
		if got := blockBytes(n); got < int64(blockSizes[class]) || got > int64(blockSizes[class])*5/4 {
			t.Fatalf("a block of %d is accounted for with %d bytes", blockSizes[class], got)
		}
	}
}
