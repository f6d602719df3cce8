package ring

import (
	"fmt"
	"testing"
)

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{3, 12, 30} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			members := pods("pod", n)
			for b.Loop() {
				if _, err := Build(Config{}, members); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOwner(b *testing.B) {
	table := build(b, pods("pod", 7))
	b.ReportAllocs()
	p := 0
	for b.Loop() {
		if table.Owner(p) == "" {
			b.Fatal("no owner")
		}
		if p++; p == table.Partitions() {
			p = 0
		}
	}
}
