package bucket

import (
	"math"
	"math/bits"
)

// addSat returns a + b, held at the ends of int64.
func addSat(a, b int64) int64 {
	s := a + b
	if (a^s)&(b^s) < 0 { // both have the sign that the sum has lost
		return saturated(a)
	}
	return s
}

// subSat returns a − b, held at the ends of int64.
func subSat(a, b int64) int64 {
	d := a - b
	if (a^b)&(a^d) < 0 {
		return saturated(a)
	}
	return d
}

// saturated returns the end of int64 on the side of sign.
func saturated(sign int64) int64 {
	if sign < 0 {
		return math.MinInt64
	}
	return math.MaxInt64
}

// mulSat returns a × b for a, b ≥ 0, at most the largest int64.
func mulSat(a, b int64) int64 {
	if b == 1 {
		return a
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// saturate returns n, at most the largest int64.
func saturate(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// elapsed returns to − from in nanoseconds. It requires from ≤ to; the whole
// range of int64 fits into the result.
func elapsed(from, to int64) uint64 { return uint64(to) - uint64(from) }

// floorDiv returns ⌊a / b⌋ for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// floorMod returns a − ⌊a / b⌋ × b, in [0, b), for b > 0.
func floorMod(a, b int64) int64 {
	m := a % b
	if m < 0 {
		m += b
	}
	return m
}

// ceilDiv returns ⌈a / b⌉ for a ≥ 0, b > 0.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

// mulDiv returns ⌊a × b / c⌋ and the remainder for a, b ≥ 0, c > 0. A quotient above the
// largest int64 is held there, with remainder 0.
func mulDiv(a, b, c int64) (quo, rem int64) {
	return wide(uint64(a), uint64(b)).div(c)
}

// mulDivCeil returns ⌈a × b / c⌉ for a, b ≥ 0, c > 0, at most the largest int64.
func mulDivCeil(a, b, c int64) int64 {
	q, r := mulDiv(a, b, c)
	if r != 0 && q != math.MaxInt64 {
		q++
	}
	return q
}

// uint128 is the product of two 64-bit numbers.
type uint128 struct{ hi, lo uint64 }

// wide returns a × b.
func wide(a, b uint64) uint128 {
	hi, lo := bits.Mul64(a, b)
	return uint128{hi, lo}
}

// add returns x + n. The callers' x are products of factors small enough that
// the sum fits.
func (x uint128) add(n uint64) uint128 {
	lo, carry := bits.Add64(x.lo, n, 0)
	return uint128{x.hi + carry, lo}
}

// sub returns x − y, or 0 if y is larger.
func (x uint128) sub(y uint128) uint128 {
	lo, borrow := bits.Sub64(x.lo, y.lo, 0)
	hi, borrow := bits.Sub64(x.hi, y.hi, borrow)
	if borrow != 0 {
		return uint128{}
	}
	return uint128{hi, lo}
}

// div returns ⌊x / d⌋ and the remainder, for d > 0. A quotient above the largest int64 is held
// there, with remainder 0.
func (x uint128) div(d int64) (quo, rem int64) {
	if x.hi == 0 {
		q := x.lo / uint64(d)
		if q > math.MaxInt64 {
			return math.MaxInt64, 0
		}
		return int64(q), int64(x.lo % uint64(d))
	}
	if x.hi >= uint64(d) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(x.hi, x.lo, uint64(d))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}

// divCeil returns ⌈x / d⌉ for d > 0, at most the largest int64.
func (x uint128) divCeil(d int64) int64 {
	q, r := x.div(d)
	if r != 0 && q != math.MaxInt64 {
		q++
	}
	return q
}
