package snapshot

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// A node's table: a million counters of 60 bytes in a thousand partitions.
const (
	benchPartitions = 1_000
	benchCounters   = 1_000 // of a partition
	benchBytes      = 60    // of a counter
)

func benchHeader() Header {
	return Header{Name: "sluice-0", Boot: "boot", Begun: noon, Partitions: benchPartitions}
}

func benchWrite(b *testing.B, d *Dir) Totals {
	b.Helper()
	var sets []*bucket.Limits
	for n := range int64(20) {
		set, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: n, Period: time.Minute})
		do(b, err)
		sets = append(sets, set)
	}
	data := make([]byte, benchCounters*benchBytes)
	rand.NewChaCha8([32]byte{}).Read(data)
	im := bucket.Image{Limits: sets, Data: data, Counters: benchCounters}
	w, err := d.Create(benchHeader())
	do(b, err)
	defer w.Abort()
	for p := range benchPartitions {
		mark := message.Mark{Epoch: message.Epoch{Gen: 1 << message.Handoffs, Boot: "boot"}, Seq: uint64(p)}
		do(b, w.Section(Section{Partition: p, Mark: mark, Owned: true, Complete: true, At: noon}))
		do(b, w.Image(&im))
	}
	do(b, w.Commit())
	return w.Totals()
}

func BenchmarkWrite(b *testing.B) {
	d := openDir(b, b.TempDir())
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(benchWrite(b, d).Bytes)
	}
}

func BenchmarkRead(b *testing.B) {
	d := openDir(b, b.TempDir())
	b.SetBytes(benchWrite(b, d).Bytes)
	b.ReportAllocs()
	for b.Loop() {
		r, err := d.Read(Want{Name: "sluice-0", Partitions: benchPartitions, Now: noon})
		do(b, err)
		for {
			if _, err := r.Next(); err == io.EOF {
				break
			} else {
				do(b, err)
			}
			for {
				if _, err := r.Image(); err == io.EOF {
					break
				} else {
					do(b, err)
				}
			}
		}
		if t := r.Totals(); t.Counters != benchPartitions*benchCounters {
			b.Fatalf("read %+v", t)
		}
		do(b, r.Close())
	}
}
