package load

import (
	"fmt"
	"math/rand/v2"
)

// Picker chooses the keys of one caller. It is not safe for concurrent use.
type Picker interface {
	// Pick returns the key of the next check that node will be asked.
	Pick(node int) uint32
}

// Pickers makes pickers. Equal seeds give pickers that choose alike.
type Pickers interface {
	New(seed uint64) Picker
}

// Uniform chooses from keys 0 to N−1 with equal chance.
type Uniform struct{ N int }

// New implements Pickers.
func (u Uniform) New(seed uint64) Picker {
	return &uniform{rand.NewPCG(seed, 1), uint64(u.N)}
}

type uniform struct {
	source *rand.PCG
	n      uint64
}

// Pick takes the high half of a product, which is uniform to 2⁻³² and has no division.
func (u *uniform) Pick(int) uint32 { return uint32(u.source.Uint64() >> 32 * u.n >> 32) }

// zipfDraws is the length of a Zipf's list of choices made beforehand.
const zipfDraws = 1 << 22

// Zipf chooses key k in proportion to 1/(1+k)^s. To cost a running load nothing, it
// draws once, when it is made; its pickers go through the list from places of their own.
type Zipf struct{ draws []uint32 }

// NewZipf draws from keys 0 to n−1; s is above 1.
func NewZipf(n int, s float64) (*Zipf, error) {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), s, 1, uint64(n-1))
	if z == nil {
		return nil, fmt.Errorf("zipf exponent %v is not above 1", s)
	}
	draws := make([]uint32, zipfDraws)
	for i := range draws {
		draws[i] = uint32(z.Uint64())
	}
	return &Zipf{draws}, nil
}

// New implements Pickers.
func (z *Zipf) New(seed uint64) Picker {
	return &zipf{z.draws, rand.NewPCG(seed, 1).Uint64() % zipfDraws}
}

type zipf struct {
	draws []uint32
	at    uint64
}

func (z *zipf) Pick(int) uint32 {
	z.at = (z.at + 1) % zipfDraws
	return z.draws[z.at]
}

// Place says where Placed's keys are held, seen from the node that is asked.
type Place int

// Places of a key.
const (
	Here Place = iota
	Elsewhere
)

// Placed chooses with equal chance from the keys that the node asked holds, or
// from those that others hold.
type Placed struct {
	// Holders has the number of the node that holds each key. Each node must
	// hold one at least, and not all.
	Holders []uint8
	Place   Place
}

// New implements Pickers.
func (p Placed) New(seed uint64) Picker {
	return &placed{uniform{rand.NewPCG(seed, 1), uint64(len(p.Holders))}, p}
}

type placed struct {
	any uniform
	Placed
}

func (p *placed) Pick(node int) uint32 {
	for {
		k := p.any.Pick(node)
		if (int(p.Holders[k]) == node) == (p.Place == Here) {
			return k
		}
	}
}
