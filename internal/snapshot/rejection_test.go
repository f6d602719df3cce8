package snapshot

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestRejections: what must not be used says why, which file it is and what to do.
func TestRejections(t *testing.T) {
	c := example()
	data := encode(t, c)
	empty := encode(t, content{Header: c.Header})
	ofVersion := func(v uint32) []byte { return slices.Concat(preamble(v), data[preambleBytes:]) }
	for _, x := range []struct {
		name   string
		data   []byte
		want   func(*Want)
		reason Reason
		says   string
	}{
		{"itself", data, func(*Want) {}, "", ""},
		{"older", ofVersion(version - 1), func(*Want) {}, Older, "format version 1"},
		{"newer", ofVersion(version + 1), func(*Want) {}, Newer, "format version 3, this program knows 2"},
		{"newer, and all else differs", append(preamble(9), "??"...), func(*Want) {}, Newer, "version 9"},
		{"nothing", nil, func(*Want) {}, Damaged, "ends before"},
		{"another file", []byte(strings.Repeat("limits: []\n", 10)), func(*Want) {}, Damaged, "does not begin as"},
		{"line ends translated", bytes.Replace(data, []byte("\r\n"), []byte("\n"), 1), func(*Want) {}, Damaged, "does not begin as"},
		{"another secret", data, func(w *Want) { w.Fingerprint[0]++ }, Foreign, "fingerprint 01020300, ours has 02020300"},
		{"another node", data, func(w *Want) { w.Name = "sluice-1" }, Foreign, `written by node "sluice-0", this is "sluice-1"`},
		{"another placement", data, func(w *Want) { w.Placement = 2 }, Foreign, "placement 1, ours by 2"},
		{"more partitions", data, func(w *Want) { w.Partitions = 9 }, Foreign, "8 partitions, we have 9"},
		{"a minute ahead", empty, func(w *Want) { w.Now = noon.Add(-time.Minute) }, "", ""},
		{"more than that", empty, func(w *Want) { w.Now = noon.Add(-time.Minute - 1) }, Future, "1m0s ahead of this machine's clock"},
		// Its second section is of a second later than its beginning.
		{"its counters a minute ahead", data, func(w *Want) { w.Now = noon.Add(time.Second - time.Minute) }, "", ""},
		{"its counters more than that", data, func(w *Want) { w.Now = noon.Add(-time.Minute) }, Future, "1m1s ahead of this machine's clock"},
		{"long ago", data, func(w *Want) { w.Now = time.Unix(1<<40, 0) }, "", ""},
		{"a clock at 1970", data, func(w *Want) { w.Now = time.Unix(0, 0) }, Future, "it is from 2026-09-21T14:13:20Z"},
	} {
		t.Run(x.name, func(t *testing.T) {
			path := t.TempDir()
			d := openDir(t, path)
			file := filepath.Join(path, fileName)
			do(t, os.WriteFile(file, x.data, 0o600))
			w := c.want()
			x.want(&w)
			r, err := d.Read(w)
			if x.reason == "" {
				do(t, err)
				do(t, r.Close())
				return
			}
			rejection := rejected(t, err, x.reason)
			if rejection.File != file || !strings.Contains("damaged older newer foreign future", string(rejection.Reason)) {
				t.Errorf("file %s, want %s; reason %v", rejection.File, file, rejection.Reason)
			}
			for _, part := range []string{file, x.says, "without these counters"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v\nsays nothing of %q", err, part)
				}
			}
			if !bytes.Equal(readAll(t, file), x.data) {
				t.Error("reading changed the file")
			}
		})
	}
}

func readAll(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	do(t, err)
	return data
}

// TestDamageAfterVerifying: the second reading trusts the first no further than it must.
func TestDamageAfterVerifying(t *testing.T) {
	c := example()
	c.Parts[0].Images[0].Data = append(make([]byte, 1<<20), "as bucket writes"...)
	data := encode(t, c)
	r, err := open(data, c.want())
	do(t, err)
	data[bytes.Index(data, []byte("as bucket writes"))]++
	_, err = read(r)
	rejected(t, err, Damaged)
	_, again := r.Next()
	rejected(t, again, Damaged)
}

// failing is a source that cannot be read from some place on.
type failing struct {
	inMemory
	from int64
}

func (f *failing) Read(b []byte) (int, error) {
	if f.Size()-int64(f.Len()) >= f.from {
		return 0, &os.PathError{Op: "read", Path: "x", Err: errStep}
	}
	return f.inMemory.Read(b[:min(int64(len(b)), f.from)])
}

// TestUnreadable: a disk that fails says nothing about the file, so that is no rejection.
func TestUnreadable(t *testing.T) {
	c := example()
	data := encode(t, c)
	for from := range int64(len(data)) {
		f := &failing{inMemory{bytes.NewReader(data)}, from}
		_, err := newReader(f, "/data/counters.snapshot", int64(len(data)), c.want())
		if rejection := (*Rejection)(nil); !errors.Is(err, errStep) || errors.As(err, &rejection) || !strings.Contains(err.Error(), "/data/counters.snapshot") {
			t.Fatalf("from byte %d: %v", from, err)
		}
	}
}

func TestAge(t *testing.T) {
	s := Section{At: noon}
	for _, c := range []struct {
		now  time.Time
		want time.Duration
	}{
		{noon.Add(time.Hour), time.Hour},
		{noon, 0},
		{noon.Add(-30 * time.Second), 0},
		{time.Unix(1<<60, 0), math.MaxInt64},
		{time.Unix(-1<<60, 0), 0},
	} {
		if got := s.Age(c.now); got != c.want {
			t.Errorf("at %v: %v, want %v", c.now, got, c.want)
		}
	}
}

// TestWriterRejects what no reader would take.
func TestWriterRejects(t *testing.T) {
	far := time.Unix(1<<40, 0)
	for name, change := range map[string]func(*content){
		"placement":       func(c *content) { c.Header.Placement = -1 },
		"partitions":      func(c *content) { c.Header.Partitions = 0 },
		"time":            func(c *content) { c.Header.Begun = far },
		"header":          func(c *content) { c.Header.Name = strings.Repeat("x", 2<<20) },
		"partition below": func(c *content) { c.Parts[0].Section.Partition = -1 },
		"partition above": func(c *content) { c.Parts[0].Section.Partition = 8 },
		"partition twice": func(c *content) { c.Parts[1].Section.Partition = 5 },
		"section's time":  func(c *content) { c.Parts[0].Section.At = time.Time{} },
		"section":         func(c *content) { c.Parts[0].Section.Mark.Epoch.Boot = strings.Repeat("x", 1<<16) },
		"counters":        func(c *content) { c.Parts[0].Images[1].Counters = 2 },
		"less than none":  func(c *content) { c.Parts[0].Images[1].Counters = -1 },
		"image":           func(c *content) { c.Parts[0].Images[0].Data = make([]byte, MaxImageBytes) },
	} {
		c := example()
		change(&c)
		if err := newMachine(nil).write(c); err == nil || !strings.HasPrefix(err.Error(), "write snapshot "+fileName) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w, err := newWriter(newMachine(nil), fileName, example().Header, func() {})
	do(t, err)
	if w.Image(&bucket.Image{}) == nil {
		t.Error("an image without a section was accepted")
	}
}
