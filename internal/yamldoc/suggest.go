package yamldoc

import "strings"

// Suggest ends an error about an unknown word: with the known word that is nearest, or with nothing if none is near. Case,
// hyphens, underscores and spaces do not count.
func Suggest(word string, known []string) string {
	best, least := "", 3
	word = plain.Replace(strings.ToLower(word))
	if len(word) > 40 {
		return ""
	}
	for _, k := range known {
		other := plain.Replace(k)
		d := distance(word, other)
		if strings.HasPrefix(other, word) {
			d = min(d, 1)
		}
		if d < least && 2*d < len(word) {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

var plain = strings.NewReplacer("_", "", "-", "", " ", "")

// distance is the number of bytes to insert, delete or replace to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of the beginning of a to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}
