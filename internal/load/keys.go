package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
)

// MaxKeys is the most keys that a load may have: their names have eight digits.
const MaxKeys = 99_999_999

// Name returns the name of key i: prefix and eight digits, for example "user00000007".
func Name(prefix string, i uint32) string { return string(appendName(nil, prefix, i)) }

func appendName(b []byte, prefix string, i uint32) []byte {
	b = append(b, prefix...)
	at := len(b)
	b = strconv.AppendUint(b, 100_000_000+uint64(i), 10)
	return append(b[:at], b[at+1:]...)
}

// Pickers makes pickers of keys 0 to n−1. It is safe for concurrent use.
type Pickers struct {
	n uint64
	// places has, for a skewed draw, one place for each key; nil draws evenly.
	places []place
}

// place is one of n equal parts of the probability. Its first part is its own key's,
// the rest that of another one, which has more than a place.
type place struct{ own, other uint32 }

// MaxSkew is the steepest skew: with more, hardly any key but the first is asked.
const MaxSkew = 10

// NewPickers draws key k in proportion to 1/(1+k)^skew; 0 draws evenly. n is 1 to MaxKeys,
// skew 0 to MaxSkew. A skewed draw takes eight bytes a key and the same short time for each (the
// alias method of Walker, in Vose's form).
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

// places shares the probability out: what a key has above its own place goes to those
// that have less than theirs.
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
		// Those that rounding leaves at the end have their place to themselves.
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

// New returns the picker of one caller. Equal seeds give pickers that choose alike.
func (p *Pickers) New(seed uint64) *Picker {
	return &Picker{rand.NewPCG(seed, 1), p}
}

// Picker chooses the keys of one caller. It is not safe for concurrent use.
type Picker struct {
	source *rand.PCG
	from   *Pickers
}

// Pick returns the key of the next check.
func (p *Picker) Pick() uint32 {
	bits := p.source.Uint64()
	// The high half of a product is even to 2⁻³² and has no division.
	k := uint32(bits >> 32 * p.from.n >> 32)
	if p.from.places == nil {
		return k
	}
	if at := p.from.places[k]; uint32(bits) >= at.own {
		return at.other
	}
	return k
}
