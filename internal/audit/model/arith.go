package model

import (
	"math"
	"math/bits"
)

// mulDiv returns ⌊a × b / c⌋ for a, b ≥ 0 and c > 0, at most the largest int64.
func mulDiv(a, b, c int64) int64 {
	q, _ := divRest(a, b, 0, c)
	return q
}

// divRest returns ⌊(a × b + add) / c⌋ and the rest. A quotient above the largest
// int64 is held there, with rest 0.
func divRest(a, b, add, c int64) (quotient, rest int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(add), 0)
	hi += carry
	if hi >= uint64(c) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}

// addSat returns a + b for b ≥ 0, at most the largest int64.
func addSat(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// floorDiv returns ⌊a / b⌋ for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// mulSat returns a × b for a, b ≥ 0, at most the largest int64.
func mulSat(a, b int64) int64 { return mulDiv(a, b, 1) }
