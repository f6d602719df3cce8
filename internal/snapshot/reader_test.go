package snapshot

import (
	"fmt"
	"io"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
	_ "github.com/sluicecluster/sluice/test/seeded"
)

// TestRoundTrip: whatever was written is read again.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyContent(t)
		m := newMachine(nil)
		if err := m.write(c); err != nil {
			t.Fatal(err)
		}
		want := c.want()
		for _, p := range c.Parts {
			if want.Now.Before(p.Section.At) {
				want.Now = p.Section.At
			}
		}
		r, err := open(m.names[fileName].data, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(r)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", c); a != b {
			t.Fatalf("read    %s\nwritten %s", a, b)
		}
	})
}

func anyContent(t *rapid.T) content {
	text := rapid.StringN(0, 20, -1)
	number := rapid.Uint64()
	moment := rapid.Map(rapid.Int64(), func(n int64) time.Time { return time.Unix(0, n).UTC() })
	mark := rapid.Custom(func(t *rapid.T) message.Mark {
		return message.Mark{Epoch: message.Epoch{Gen: number.Draw(t, "gen"), Boot: text.Draw(t, "boot")}, Seq: number.Draw(t, "seq")}
	})
	c := content{Header: Header{
		Placement: rapid.IntMin(0).Draw(t, "placement"), Name: text.Draw(t, "name"), Boot: text.Draw(t, "boot"), Begun: moment.Draw(t, "begun"),
		Partitions: rapid.IntRange(1, 1<<16).Draw(t, "partitions"),
		Set:        message.Set{ID: text.Draw(t, "id"), Version: number.Draw(t, "version"), Members: rapid.SliceOfN(text, 0, 5).Draw(t, "members")},
	}}
	copy(c.Header.Fingerprint[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "fingerprint"))
	sets := rapid.SliceOfN(rapid.SliceOfN(anyLimit(), 1, 3), 1, 4).Draw(t, "sets")
	sets[0] = nil
	partitions := rapid.SliceOfNDistinct(rapid.IntRange(0, c.Header.Partitions-1), 0, 4, rapid.ID).Draw(t, "held")
	for _, n := range partitions {
		p := part{Section: Section{
			n, mark.Draw(t, "mark"), mark.Draw(t, "start"), rapid.Bool().Draw(t, "holding"), rapid.Bool().Draw(t, "complete"), moment.Draw(t, "at"),
			message.Epoch{}, time.Time{},
		}}
		if rapid.Bool().Draw(t, "lost") {
			p.Section.LostOf, p.Section.LostAt = message.Epoch{Gen: 1 + number.Draw(t, "lost generation")/2}, moment.Draw(t, "lost at")
		}
		for range rapid.IntRange(0, 3).Draw(t, "images") {
			im := image{
				Limits: rapid.SliceOfN(rapid.SampledFrom(sets), 0, 5).Draw(t, "limits"),
				Data:   rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
			}
			im.Counters = rapid.IntRange(0, len(im.Data)).Draw(t, "counters")
			p.Images = append(p.Images, im)
		}
		c.Parts = append(c.Parts, p)
	}
	return c
}

func anyLimit() *rapid.Generator[bucket.Limit] {
	return rapid.Custom(func(t *rapid.T) bucket.Limit {
		return bucket.Limit{
			Algorithm:   bucket.Algorithm(rapid.IntRange(1, 7).Draw(t, "algorithm")),
			Count:       rapid.Int64Min(0).Draw(t, "count"),
			Period:      time.Duration(rapid.Int64Range(int64(bucket.MinPeriod), int64(bucket.MaxPeriod)).Draw(t, "period")),
			Cost:        rapid.Int64Min(0).Draw(t, "cost"),
			Soft:        rapid.Int32Range(0, bucket.MaxSoft).Draw(t, "soft"),
			CountDenied: rapid.Bool().Draw(t, "count_denied"),
		}
	})
}

// TestSkipping: Next leaves out what was not read, Image stays at the end of its section.
func TestSkipping(t *testing.T) {
	c := example()
	r, err := open(encode(t, c), c.want())
	do(t, err)
	end := func() {
		t.Helper()
		for range 2 {
			if im, err := r.Image(); im != nil || err != io.EOF {
				t.Fatalf("image %v, %v, want the end", im, err)
			}
		}
	}
	next := func(want int) {
		t.Helper()
		if s, err := r.Next(); err != nil || s.Partition != want {
			t.Fatalf("section %d, %v, want %d", s.Partition, err, want)
		}
	}
	end()
	next(5)
	if im, err := r.Image(); err != nil || im.Counters != 2 {
		t.Fatalf("image %v, %v", im, err)
	}
	next(0)
	end()
	next(7)
	if im, err := r.Image(); err != nil || im.Counters != 0 {
		t.Fatalf("image %v, %v", im, err)
	}
	end()
	for range 2 {
		if s, err := r.Next(); err != io.EOF {
			t.Fatalf("section %+v, %v, want the end", s, err)
		}
	}
	end()
}
