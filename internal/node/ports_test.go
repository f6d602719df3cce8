package node

import "testing"

func TestFit(t *testing.T) {
	for _, c := range []struct {
		descriptors uint64
		asked       int
		want, own   int // 0: as asked
	}{
		{0, 8192, 0, 0},
		{1 << 63, 8192, 0, 0},
		{1 << 20, 8192, 0, 0},
		{1024, 300, 0, 0},
		{1024, 8192, 384, 85},
		{256, 8192, 80, 32},
		{64, 8192, 16, 32},
	} {
		b := Bounds{MaxConnections: c.asked}
		lowered := b.fitDescriptors(c.descriptors)
		if c.want == 0 {
			c.want = c.asked
		}
		if lowered != (c.want != c.asked) || b.MaxConnections != c.want || b.maxOwn != c.own {
			t.Errorf("%d of %d descriptors: %+v", c.asked, c.descriptors, b)
		}
	}
}
