package audit

import (
	"strings"
	"testing"
)

// A log is checks to its end, or an error that names a line.
func FuzzReadLog(f *testing.F) {
	f.Add([]byte(`{"key":"a","sent_ns":1,"answered_ns":2,"node":"n","decision":"allowed","attempts":1}` + "\n"))
	f.Add([]byte(`{"key":1}`))
	f.Add([]byte(`{"key":"a"`))
	f.Fuzz(func(t *testing.T, log []byte) {
		read := 0
		err := ReadLog(strings.NewReader(string(log)), func(Check) error { read++; return nil })
		if err != nil && !strings.HasPrefix(err.Error(), "log: line ") {
			t.Errorf("%q: %v", log, err)
		}
		if read > len(log) {
			t.Errorf("%q: %d checks", log, read)
		}
	})
}
