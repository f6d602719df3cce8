package load

import "strconv"

// width is the length of a key: "user" and eight digits.
const width = 12

// MaxKeys is the most keys that NewKeys makes.
const MaxKeys = 99_999_999

// Keys are the names that checks ask for, in one string, so that the collector
// of the load's own process sees no pointers and asking for one allocates nothing.
type Keys struct {
	text string
	n    int
}

// NewKeys returns the keys 0 to n−1; n is at most MaxKeys.
func NewKeys(n int) *Keys {
	text := make([]byte, 0, n*width)
	for i := range n {
		text = append(text, "user"...)
		digits := strconv.AppendInt(nil, 100_000_000+int64(i), 10)
		text = append(text, digits[1:]...)
	}
	return &Keys{string(text), n}
}

// Len is the number of keys.
func (k *Keys) Len() int { return k.n }

// At returns key i.
func (k *Keys) At(i uint32) string {
	return k.text[int(i)*width : int(i)*width+width]
}
