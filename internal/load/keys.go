package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
)

// MaxKeys is the most keys that a load may have: their names have eight digits.
const MaxKeys = 99_999_999

// Name returns the name of key i: a prefix and eight digits, for example "user00000007".
func Name(prefix string, i uint32) string { return string(appendName(nil, prefix, i)) }

func appendName(b []byte, prefix string, i uint32) []byte {
	b = append(b, prefix...)
	at := len(b)
	b = strconv.AppendUint(b, 100_000_000+uint64(i), 10)
	return append(b[:at], b[at+1:]...)
}

// Pickers makes pickers of keys 0 to n−1. It is safe for concurrent use.
type Pickers struct {
	n      uint64
	places []place // one for each key in a skewed draw; nil draws evenly
}

// place is one of n equal parts of the probability. Its own key has the first part, another key the rest.
type place struct{ own, other uint32 }

// MaxSkew is the steepest skew: with more, nearly all checks are of the first key.
const MaxSkew = 10

// NewPickers draws key k in proportion to 1/(1+k)^skew; 0 draws evenly. n is 1 to MaxKeys, skew 0 to MaxSkew. A skewed draw
// takes eight bytes a key and constant time (the alias method of Walker, in Vose's form).
func NewPickers(n int, skew float64) (*Pickers, error) {
	if n < 1 || n > MaxKeys {
		return nil, fmt.Errorf("keys: %d; want 1 to %d", n, MaxKeys)
	}
	if !(skew >= 0 && skew <= MaxSkew) { // NaN is neither
		return nil, fmt.Errorf("skew: %v; want 0 to %d", skew, MaxSkew)
	}
	p := &Pickers{n: uint64(n)}
	if skew > 0 {
		p.places = places(n, skew)
	}
	return p, nil
}

// places gives the probability of a key above its own place to places of keys with less.
func places(n int, skew float64) []place {
	weight := make([]float64, n)
	sum := 0.0
	for k := range weight {
		weight[k] = math.Pow(float64(1+k), -skew)
		sum += weight[k]
	}
	all := make([]place, n)
	var poor, rich []uint32
	for k := range weight {
		weight[k] *= float64(n) / sum
		// Keys that rounding leaves at the end keep their place alone.
		all[k] = place{math.MaxUint32, uint32(k)}
		if weight[k] < 1 {
			poor = append(poor, uint32(k))
		} else {
			rich = append(rich, uint32(k))
		}
	}
	for len(poor) > 0 && len(rich) > 0 {
		p, r := poor[len(poor)-1], rich[len(rich)-1]
		poor = poor[:len(poor)-1]
		all[p] = place{uint32(weight[p] * math.MaxUint32), r}
		if weight[r] -= 1 - weight[p]; weight[r] < 1 {
			rich, poor = rich[:len(rich)-1], append(poor, r)
		}
	}
	return all
}

// New returns the picker of one caller. Equal seeds give equal choices.
func (p *Pickers) New(seed uint64) *Picker { return &Picker{rand.NewPCG(seed, 1), p} }

// Picker chooses the keys of one caller. It is not safe for concurrent use.
type Picker struct {
	source *rand.PCG
	from   *Pickers
}

// Pick returns the key of the next check.
func (p *Picker) Pick() uint32 {
	bits := p.source.Uint64()
	// The high half of a product is uniform to 2⁻³² and needs no division.
	k := uint32(bits >> 32 * p.from.n >> 32)
	if p.from.places == nil {
		return k
	}
	if at := p.from.places[k]; uint32(bits) >= at.own {
		return at.other
	}
	return k
}
