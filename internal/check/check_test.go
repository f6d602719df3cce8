package check

import "testing"

func TestSourceWords(t *testing.T) {
	seen := map[string]bool{"": true, "unknown": true}
	for s := Owned; s <= Lost; s++ {
		if w := s.String(); seen[w] {
			t.Errorf("source %d is %q", s, w)
		} else {
			seen[w] = true
		}
	}
	if w := Source(0).String(); w != "" {
		t.Errorf("no source is %q", w)
	}
	if w := Source(99).String(); w != "unknown" {
		t.Errorf("source 99 is %q", w)
	}
}
