package bucket

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/sluicecluster/sluice/bucket/internal/offheap"
)

// slabs hands out blocks of memory for what does not fit into records. Blocks have no pointers and are of a few sizes. Those of one
// size share pages outside Go's heap, and a page without blocks goes back to the operating system (Bonwick, "The slab allocator",
// USENIX Summer 1994). A larger block has a page of its own, of which it uses the beginning. Safe for concurrent use.
type slabs struct {
	arena   *offheap.Arena
	classes [len(blockSizes)]slabClass
	large   [largeClasses]*offheap.Arena
}

// blockRef is the address of a block, 0 for none.
type blockRef uint64

// at returns the memory of the block. checkptr could not tell that it has a page on Go's heap, where there are no others.
//
//go:nocheckptr
func (b blockRef) at() unsafe.Pointer { return unsafe.Add(nil, uintptr(b)) }

// blockSizes are the sizes of blocks: those of rings of 4 to 256 entries with their sums, and some between them for sides.
var blockSizes = [...]int{48, 64, 80, 112, 128, 144, 192, 256, 384, 512, 768, 1024, 2048 + 32, 4096 + 64}

const (
	slabBytes = 32 << 10
	// Large blocks have pages from 8 KiB to 16 MiB, more than the largest ring, side and ledger take.
	leastLarge   = 8 << 10
	largeClasses = 12
	// smallPage is how memory is given out by the operating system.
	smallPage = 4096
)

// slabClass has the pages of one size of block.
type slabClass struct {
	sync.Mutex
	// partial is the first of a list of pages that have a free block.
	partial *slab
}

// slab is the beginning of a page.
type slab struct {
	// next and before are other pages with a free block. They are outside Go's heap too.
	next, before *slab
	// free is the first free block; each has the next one in its first word.
	free blockRef
	// used is how many blocks are in use, fresh where those lie that never were.
	used, fresh uint32
}

const slabHead = int(unsafe.Sizeof(slab{}))

func newSlabs() *slabs {
	s := &slabs{arena: offheap.New(slabBytes, true)}
	for i := range s.large {
		s.large[i] = offheap.New(leastLarge<<i, false)
	}
	return s
}

func (s *slabs) bytes() int64 {
	n := s.arena.Bytes()
	for _, a := range s.large {
		n += a.Bytes()
	}
	return n
}

// classOf returns the smallest class of blocks of n bytes or more. From len(blockSizes) on they are large.
func classOf(n int) int {
	for i, size := range blockSizes {
		if n <= size {
			return i
		}
	}
	return len(blockSizes) + max(0, bits.Len(uint(n-1))-bits.Len(leastLarge-1))
}

// blockBytes returns the memory of a block of n bytes, with its part of what the page has besides.
func blockBytes(n int) int64 {
	class := classOf(n)
	if class >= len(blockSizes) {
		return int64(n+smallPage-1) &^ (smallPage - 1) // what it does not use of its page takes no memory
	}
	return blockMemory[class]
}

// blockMemory is the part of a page that a block of each size takes.
var blockMemory = func() (memory [len(blockSizes)]int64) {
	for i, size := range blockSizes {
		memory[i] = int64(slabBytes / ((slabBytes - slabHead) / size))
	}
	return memory
}()

// get returns a block of n bytes or more, which may have any content.
func (s *slabs) get(n int) blockRef {
	class := classOf(n)
	if class >= len(blockSizes) {
		return blockRef(uintptr(s.large[class-len(blockSizes)].Get()))
	}
	c := &s.classes[class]
	c.Lock()
	defer c.Unlock()
	p := c.partial
	if p == nil {
		p = (*slab)(s.arena.Get())
		p.fresh = uint32(slabHead)
		c.link(p)
	}
	p.used++
	ref := p.free
	if ref != 0 {
		p.free = *(*blockRef)(ref.at())
	} else {
		ref = blockRef(uintptr(unsafe.Pointer(p))) + blockRef(p.fresh)
		p.fresh += uint32(blockSizes[class])
	}
	if p.full(blockSizes[class]) {
		c.unlink(p)
	}
	return ref
}

// put takes back the block of n bytes, which is not used any more.
func (s *slabs) put(ref blockRef, n int) {
	class := classOf(n)
	if class >= len(blockSizes) {
		s.large[class-len(blockSizes)].Put(ref.at())
		return
	}
	c := &s.classes[class]
	c.Lock()
	defer c.Unlock()
	p := (*slab)((ref &^ (slabBytes - 1)).at())
	if p.full(blockSizes[class]) {
		c.link(p)
	}
	*(*blockRef)(ref.at()), p.free = p.free, ref
	// The only page with room stays, so that one block that comes and goes needs none from the arena.
	if p.used--; p.used == 0 && (c.partial != p || p.next != nil) {
		c.unlink(p)
		s.arena.Put(unsafe.Pointer(p))
	}
}

// compact moves the block of n bytes to another page if its own is less than a quarter full, and returns where it is.
func (s *slabs) compact(ref blockRef, n int) blockRef {
	class := classOf(n)
	if class >= len(blockSizes) {
		return ref
	}
	c, p := &s.classes[class], (*slab)((ref &^ (slabBytes - 1)).at())
	c.Lock()
	sparse := c.partial != p && c.partial != nil && int(p.used)*blockSizes[class] < slabBytes/4
	c.Unlock()
	if !sparse {
		return ref
	}
	to := s.get(n)
	copy(unsafe.Slice((*byte)(to.at()), n), unsafe.Slice((*byte)(ref.at()), n))
	s.put(ref, n)
	return to
}

// full reports whether p has no free block of its size.
func (p *slab) full(size int) bool { return p.free == 0 && int(p.fresh)+size > slabBytes }

// link makes p the first page with a free block.
func (c *slabClass) link(p *slab) {
	if p.next = c.partial; p.next != nil {
		p.next.before = p
	}
	p.before, c.partial = nil, p
}

func (c *slabClass) unlink(p *slab) {
	if p.next != nil {
		p.next.before = p.before
	}
	if p.before != nil {
		p.before.next = p.next
	} else {
		c.partial = p.next
	}
	p.next, p.before = nil, nil
}
