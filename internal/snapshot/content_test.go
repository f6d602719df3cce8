package snapshot

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// noon is when the snapshots of these tests are begun.
var noon = time.Unix(1_790_000_000, 123_456_789).UTC()

// content is all that a snapshot says, in a form that reflect.DeepEqual compares.
type content struct {
	Header Header
	Parts  []part
}

type part struct {
	Section Section
	Images  []image
}

type image struct {
	Limits   [][]bucket.Limit // nil for a set that is not known
	Data     []byte
	Counters int
}

// example is a small snapshot with something of everything.
func example() content {
	mark := func(gen uint64, boot string, seq uint64) message.Mark {
		return message.Mark{Epoch: message.Epoch{Gen: gen, Boot: boot}, Seq: seq}
	}
	ten := []bucket.Limit{{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Minute, Burst: 20}}
	daily := []bucket.Limit{
		{Algorithm: bucket.FixedWindow, Count: 1000, Align: bucket.AlignCalendar, Unit: bucket.Day, Zone: "Europe/Berlin"},
		{Algorithm: bucket.SlidingLog, Count: 10, Period: time.Second, LogEntries: 10},
	}
	return content{
		Header: Header{
			Placement: 1, Fingerprint: [16]byte{1, 2, 3, 15: 16}, Name: "sluice-0", Boot: "18f3-77", Begun: noon, Partitions: 8,
			Set: message.Set{ID: "18f3-01", Version: 1 << 63, Members: []string{"sluice-0", "sluice-1", "sluice-2"}},
		},
		Parts: []part{
			{Section{5, mark(3<<message.Handoffs+1, "18f3-77", 900), mark(3<<message.Handoffs, "18f3-02", 850), true, true, noon, message.Epoch{}, time.Time{}}, []image{
				{[][]bucket.Limit{ten, daily}, []byte("counters, as bucket writes them"), 2},
				{[][]bucket.Limit{daily, nil}, []byte{0}, 1},
			}},
			{Section{0, mark(1<<63, "", 1<<63), message.Mark{}, false, true, noon.Add(time.Second), message.Epoch{Gen: 1 << 62, Boot: "18f3-02"}, noon.Add(-time.Minute)}, nil},
			{Section{7, mark(2, "x", 7), message.Mark{}, false, false, noon.Add(-time.Hour), message.Epoch{}, time.Time{}}, []image{{nil, nil, 0}}},
		},
	}
}

// want returns what a node must be to use c a second after it was begun.
func (c *content) want() Want {
	h := &c.Header
	return Want{h.Placement, h.Fingerprint, h.Name, h.Partitions, h.Begun.Add(time.Second)}
}

// write has c written by w, but not committed.
func (c *content) write(w *Writer) error {
	sets := make(map[*bucket.Limit]*bucket.Limits) // one *Limits for one list, as a table would have it
	for _, p := range c.Parts {
		if err := w.Section(p.Section); err != nil {
			return err
		}
		for _, im := range p.Images {
			out := bucket.Image{Data: im.Data, Counters: im.Counters}
			for _, list := range im.Limits {
				var set *bucket.Limits
				if list != nil {
					if set = sets[&list[0]]; set == nil {
						var err error
						if set, err = bucket.NewLimits(list...); err != nil {
							return err
						}
						sets[&list[0]] = set
					}
				}
				out.Limits = append(out.Limits, set)
			}
			if err := w.Image(&out); err != nil {
				return err
			}
		}
	}
	return nil
}

// read takes all that r has.
func read(r *Reader) (content, error) {
	c := content{Header: r.Header()}
	for {
		s, err := r.Next()
		if err == io.EOF {
			return c, nil
		}
		if err != nil {
			return c, err
		}
		p := part{Section: s}
		for {
			im, err := r.Image()
			if err == io.EOF {
				break
			}
			if err != nil {
				return c, err
			}
			p.Images = append(p.Images, imageOf(im))
		}
		c.Parts = append(c.Parts, p)
	}
}

func imageOf(im *bucket.Image) image {
	out := image{Counters: im.Counters}
	if len(im.Data) > 0 {
		out.Data = bytes.Clone(im.Data)
	}
	for _, set := range im.Limits {
		var list []bucket.Limit
		if set != nil {
			for i := range set.Len() {
				list = append(list, set.At(i))
			}
		}
		out.Limits = append(out.Limits, list)
	}
	return out
}

// inMemory is a source.
type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

func open(data []byte, want Want) (*Reader, error) {
	return newReader(inMemory{bytes.NewReader(data)}, "counters.snapshot", int64(len(data)), want)
}

// encode returns c as a file.
func encode(t testing.TB, c content) []byte {
	t.Helper()
	m := newMachine(nil)
	m.do(t, c)
	return m.names[fileName].data
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rejected fails the test unless err is a rejection for the reason.
func rejected(t testing.TB, err error, reason Reason) *Rejection {
	t.Helper()
	var r *Rejection
	if !errors.As(err, &r) || r.Reason != reason {
		t.Fatalf("%v, want a rejection: %v", err, reason)
	}
	return r
}

func same(t testing.TB, got, want content) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("read    %+v\nwritten %+v", got, want)
	}
}
