package peer

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/limiter"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	_ "github.com/sluicecluster/sluice/test/seeded"
	"github.com/sluicecluster/sluice/transport"
)

// genAPILimits draws a set of limits that a check may bring.
func genAPILimits() *rapid.Generator[*bucket.Limits] {
	return rapid.Custom(func(t *rapid.T) *bucket.Limits {
		most := rapid.SampledFrom([]int{1, 3, bucket.MaxLimits}).Draw(t, "limits at most")
		for {
			var list []*sluicev1.Limit
			for range rapid.IntRange(1, most).Draw(t, "limits") {
				list = append(list, genAPILimit().Draw(t, "limit"))
			}
			for ; len(list) > 0; list = list[:len(list)-1] {
				if l, err := transport.LimitsFromProto("d", "", list); err == nil {
					return l
				}
			}
		}
	})
}

func genAPILimit() *rapid.Generator[*sluicev1.Limit] {
	return rapid.Custom(func(t *rapid.T) *sluicev1.Limit {
		l := bucket.Limit{
			Algorithm: bucket.Algorithm(rapid.IntRange(1, int(bucket.SlidingWindow)).Draw(t, "algorithm")),
			Count:     rapid.SampledFrom([]int64{0, 1, 10, 1 << 46, math.MaxInt64}).Draw(t, "count"),
			Period:    rapid.SampledFrom([]time.Duration{bucket.MinPeriod, time.Second, time.Hour, bucket.MaxPeriod}).Draw(t, "period"),
			Cost:      rapid.SampledFrom([]int64{0, 3, 1 << 46}).Draw(t, "cost"),
			Soft:      rapid.SampledFrom([]int32{0, bucket.MaxSoft}).Draw(t, "soft"),
			Unlimited: rapid.IntRange(0, 9).Draw(t, "unlimited") == 0,
		}
		if rapid.Bool().Draw(t, "interval") {
			l.MinInterval = l.Period
		}
		switch l.Algorithm {
		case bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue:
			l.Burst = rapid.SampledFrom([]int64{0, 1, 1 << 50}).Draw(t, "burst")
		case bucket.FixedWindow:
			l.Align = rapid.SampledFrom([]bucket.Align{bucket.AlignEpoch, bucket.AlignFirstHit, bucket.AlignCalendar}).Draw(t, "align")
			if l.Align == bucket.AlignCalendar {
				l.Unit = bucket.Unit(rapid.IntRange(1, int(bucket.Year)).Draw(t, "unit"))
				l.Zone = rapid.SampledFrom([]string{"", "America/Argentina/ComodRivadavia", "Europe/" + strings.Repeat("./", 2000) + "Berlin"}).Draw(t, "zone")
			}
		case bucket.SlidingLog:
			l.LogEntries = rapid.SampledFrom([]int32{0, 1, 4096, bucket.MaxLogEntries}).Draw(t, "entries")
			l.CountDenied = rapid.Bool().Draw(t, "denied count")
		case bucket.SlidingWindow:
			l.SubWindows = rapid.SampledFrom([]int32{0, 2, bucket.MaxSubWindows}).Draw(t, "sub-windows")
		}
		return transport.LimitToProto(l)
	})
}

// TestAnyTableCanBeSent: whatever callers have brought into a table, limits and former limits of any kind and logs of any length, a
// transfer batch takes it, a frame takes the transfer batch, and the other node reads and imports the same.
func TestAnyTableCanBeSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := oneShard(t), oneShard(t)
		now := int64(1_790_000_000_000_000_000)
		held := make(map[bucket.Key]*bucket.Limits)
		for range rapid.IntRange(1, 60).Draw(t, "checks") {
			r := bucket.Request{
				Key:    bucket.Key{Lo: rapid.Uint64Range(0, 9).Draw(t, "key")},
				Limits: genAPILimits().Draw(t, "set"),
				Cost:   rapid.SampledFrom([]int64{1, 3, 1 << 46, 1 << 62}).Draw(t, "cost"),
				Verb:   rapid.SampledFrom([]bucket.Verb{bucket.Check, bucket.Charge, bucket.Charge, bucket.Refund}).Draw(t, "verb"),
			}
			for range rapid.SampledFrom([]int{1, 2, 3000}).Draw(t, "times") {
				from.Do(now, &r)
				now += rapid.SampledFrom([]int64{1, 1 << 45}).Draw(t, "later")
			}
			held[r.Key] = r.Limits
		}
		send(t, now, from, to, rapid.SampledFrom([]int{64, 4096, 256 << 10}).Draw(t, "bytes"))
		for key, limits := range held {
			was, _ := from.Look(now, key, limits)
			if is, _ := to.Look(now, key, limits); !reflect.DeepEqual(is, was) {
				t.Fatalf("key %v was %+v, and is %+v at the other node", key, was, is)
			}
		}
	})
}

func oneShard(t rapid.TB) *bucket.Table {
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// send sends all counters as package handoff packs them, transfer batches of about so many bytes, and this package sends them.
func send(t rapid.TB, now int64, from, to *bucket.Table, bytes int) {
	t.Helper()
	room := bucket.ImageBounds{Bytes: bytes, Sets: message.MaxSets, Counter: bucket.MaxCounterBytes}
	w := newControlWriter(defaultMaxLimits)
	r := controlReader{definitions: definitions{intern: limiter.NewInterner(defaultMaxLimits)}}
	var q controlMessages
	for keys := from.Keys(0, nil); len(keys) > 0; {
		b := new(message.TransferBatch)
		n, large := from.ExportSome(now, 0, keys, &b.Image, room)
		if n == 0 || large > 0 {
			t.Fatalf("%d counters go into an empty transfer batch, %d are too large", n, large)
		}
		keys = keys[n:]
		b.Parts = []message.Part{{Kind: message.InitialSync, Counters: n, Bytes: len(b.Image.Data)}}
		m, err := encode(&message.Envelope{Body: b})
		if err != nil {
			t.Fatal(err)
		}
		if !q.push(m) {
			t.Fatalf("a transfer batch of %d bytes does not go into an empty queue", len(b.Image.Data))
		}
		frame, err := w.frame(takeFrame(nil, new(controlMessages), &q))
		if err != nil {
			t.Fatal(err)
		}
		wire, err := proto.Marshal(frame)
		if err != nil {
			t.Fatal(err)
		}
		if len(wire) > maxFrameBytes {
			t.Fatalf("a frame of %d bytes", len(wire))
		}
		var post peerv1.MessageFrame
		if err := proto.Unmarshal(wire, &post); err != nil {
			t.Fatal(err)
		}
		got, skipped, err := r.read(&post, nil)
		if err != nil || skipped > 0 || len(got) != 1 {
			t.Fatalf("%d messages, %d skipped: %v", len(got), skipped, err)
		}
		p := got[0].Body.(*message.TransferBatch)
		if err := to.Import(now, 0, &p.Image, p.Image.Data, p.Image.Counters, false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLargestCountersCanBeSent: as many sets as there are, each as long as there is, and logs that are full of what takes most bytes.
func TestLargestCountersCanBeSent(t *testing.T) {
	from, to := oneShard(t), oneShard(t)
	now := int64(1)
	sets := make([]*bucket.Limits, 4200)
	for i := range sets {
		var list []*sluicev1.Limit
		for j := range bucket.MaxLimits {
			list = append(list, transport.LimitToProto(bucket.Limit{
				Algorithm: bucket.FixedWindow, Count: math.MaxInt64 - int64(i), Cost: math.MaxInt64, MinInterval: bucket.MaxPeriod - time.Duration(j), Soft: bucket.MaxSoft,
				CountDenied: true, Align: bucket.AlignCalendar, Unit: bucket.Year, Zone: "America/Argentina/ComodRivadavia",
			}))
		}
		l, err := transport.LimitsFromProto("d", "", list)
		if err != nil {
			t.Fatal(err)
		}
		sets[i] = l
	}
	logs, err := transport.LimitsFromProto("d", "", []*sluicev1.Limit{transport.LimitToProto(bucket.Limit{
		Algorithm: bucket.SlidingLog, Count: math.MaxInt64, Cost: 1 << 62, Period: bucket.MaxPeriod, LogEntries: bucket.MaxLogEntries,
	})})
	if err != nil {
		t.Fatal(err)
	}
	for range bucket.MaxLogEntries + 9 {
		for key := range uint64(16) { // together more than a frame takes
			from.Do(now, &bucket.Request{Key: bucket.Key{Hi: 1, Lo: key}, Limits: logs, Verb: bucket.Charge, Cost: 1})
		}
		now += int64(bucket.MaxPeriod) / bucket.MaxLogEntries
	}
	for i, l := range sets {
		from.Do(now, &bucket.Request{Key: bucket.Key{Lo: uint64(i)}, Limits: l, Verb: bucket.Charge, Cost: 1})
	}
	for _, bytes := range []int{256 << 10, 4 << 20} {
		send(t, now, from, to, bytes)
	}
	if was, is := from.Stats().Entries, to.Stats().Entries; was != is {
		t.Errorf("%d counters of %d are there", is, was)
	}
}
