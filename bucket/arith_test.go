package bucket

import (
	"math"
	"math/big"
	"testing"
)

// edges are the numbers at which arithmetic on int64 goes wrong.
var edges = []int64{
	math.MinInt64, math.MinInt64 + 1, -1 << 62, -1_000_000_007, -2, -1, 0, 1, 2, 3, 7, 1_000_000_007,
	1 << 31, 1<<32 - 1, 1 << 32, 1 << 62, math.MaxInt64 - 1, math.MaxInt64,
}

// held returns x, held at the ends of int64.
func held(x *big.Int) int64 {
	if x.IsInt64() {
		return x.Int64()
	}
	return saturated(int64(x.Sign()))
}

func TestArithmeticSaturates(t *testing.T) {
	for _, a := range edges {
		for _, b := range edges {
			x, y := big.NewInt(a), big.NewInt(b)
			if got, want := addSat(a, b), held(new(big.Int).Add(x, y)); got != want {
				t.Errorf("%d + %d = %d, want %d", a, b, got, want)
			}
			if got, want := subSat(a, b), held(new(big.Int).Sub(x, y)); got != want {
				t.Errorf("%d − %d = %d, want %d", a, b, got, want)
			}
			if a >= 0 && b >= 0 {
				if got, want := mulSat(a, b), held(new(big.Int).Mul(x, y)); got != want {
					t.Errorf("%d × %d = %d, want %d", a, b, got, want)
				}
			}
			if a <= b {
				if got, want := elapsed(a, b), new(big.Int).Sub(y, x).Uint64(); got != want {
					t.Errorf("from %d to %d: %d, want %d", a, b, got, want)
				}
			}
			if b > 0 {
				testDivision(t, a, b)
			}
		}
	}
}

// testDivision requires b > 0.
func testDivision(t *testing.T, a, b int64) {
	t.Helper()
	// big.Int.DivMod is Euclidean: for b > 0 it rounds down.
	quo, rem := new(big.Int).DivMod(big.NewInt(a), big.NewInt(b), new(big.Int))
	if got := floorDiv(a, b); got != quo.Int64() {
		t.Errorf("⌊%d / %d⌋ = %d, want %d", a, b, got, quo)
	}
	if got := floorMod(a, b); got != rem.Int64() {
		t.Errorf("%d mod %d = %d, want %d", a, b, got, rem)
	}
	if a < 0 {
		return
	}
	ceil := quo.Int64()
	if rem.Sign() > 0 {
		ceil++
	}
	if got := ceilDiv(a, b); got != ceil {
		t.Errorf("⌈%d / %d⌉ = %d, want %d", a, b, got, ceil)
	}
}

func TestWideArithmetic(t *testing.T) {
	for _, a := range edges {
		for _, b := range edges {
			if a < 0 || b < 0 {
				continue
			}
			product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
			for _, c := range edges {
				if c <= 0 {
					continue
				}
				quo, rem := new(big.Int).DivMod(product, big.NewInt(c), new(big.Int))
				ceil := new(big.Int).Set(quo)
				if rem.Sign() > 0 {
					ceil.Add(ceil, big.NewInt(1))
				}
				if !quo.IsInt64() {
					rem.SetInt64(0)
				}
				if q, r := mulDiv(a, b, c); q != held(quo) || r != rem.Int64() {
					t.Errorf("%d × %d / %d = %d, rest %d, want %d, rest %d", a, b, c, q, r, held(quo), rem)
				}
				if q := mulDivCeil(a, b, c); q != held(ceil) {
					t.Errorf("⌈%d × %d / %d⌉ = %d, want %d", a, b, c, q, held(ceil))
				}
			}
			testWideDifference(t, a, b)
		}
	}
}

// testWideDifference compares (a × b + a) − b × 7, held at 0, divided by 3.
func testWideDifference(t *testing.T, a, b int64) {
	t.Helper()
	x, y := big.NewInt(a), big.NewInt(b)
	want := new(big.Int).Mul(x, y)
	want.Add(want, x)
	want.Sub(want, new(big.Int).Mul(y, big.NewInt(7)))
	if want.Sign() < 0 {
		want.SetInt64(0)
	}
	want.Div(want, big.NewInt(3))
	got, _ := wide(uint64(a), uint64(b)).add(uint64(a)).sub(wide(uint64(b), 7)).div(3)
	if got != held(want) {
		t.Errorf("(%d × %d + %d − %d × 7) / 3 = %d, want %d", a, b, a, b, got, held(want))
	}
}
