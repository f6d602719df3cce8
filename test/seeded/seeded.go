// Package seeded makes the property tests of a package that imports it draw the same values each
// time, so that `make test` says of a tree what it said before. `-rapid.seed 0` draws others each
// time, as make test-long does.
package seeded

import (
	"flag"

	_ "pgregory.net/rapid" // it has the flag
)

func init() {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
}
