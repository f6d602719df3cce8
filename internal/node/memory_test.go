package node

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestCounterBytes(t *testing.T) {
	for _, c := range []struct {
		limit   string
		entries int
		want    int64
		wantN   int
		err     string
	}{
		{"256MiB", 0, 159 << 20, 159 << 20 / 58, ""},
		{"256MiB", 77, 159 << 20, 77, ""},
		{"64MiB", 0, 15 << 20, 15 << 20 / 58, ""},
		{"63MiB", 0, 0, 0, "--memory-limit: 63 MiB is less than a node needs; want at least 64 MiB"},
		{"0", 0, 0, 0, "--memory-limit: 0 B is less than a node needs; want at least 64 MiB"},
		{"much", 0, 0, 0, "--memory-limit: \"much\" is not a size"},
	} {
		s := Defaults()
		s.Bounds.MemoryLimit, s.MaxEntries = c.limit, c.entries
		got, err := s.counterBytes()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("--memory-limit %s: %v; want %q", c.limit, err, c.err)
		}
		if err == nil && (got != c.want || s.counterEntries(got) != c.wantN) {
			t.Errorf("--memory-limit %s: %d bytes, %d counters; want %d, %d", c.limit, got, s.counterEntries(got), c.want, c.wantN)
		}
	}
}

// Without --memory-limit a node takes half of what its control group may use, or a quarter of the machine.
func TestUsualMemory(t *testing.T) {
	const meminfo = "MemTotal:       16777216 kB\nMemFree:  1 kB\n" // 16 GiB
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known":       {nil, 512 << 20},
		"no group":               {map[string]string{"proc/meminfo": meminfo}, 4 << 30},
		"group without limit":    {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 4 << 30},
		"container, version 2":   {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 512 << 20},
		"a group around it":      {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "2147483648\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1 << 30},
		"more than there is":     {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "99999999999999\n"}, 4 << 30},
		"container, version 1":   {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "9:cpu:/x\n8:memory:/docker/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n"}, 512 << 20},
		"version 1, no limit":    {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "8:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4 << 30},
		"less than a node needs": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "67108864\n"}, 64 << 20},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := usualMemory(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A small heap has room for garbage, a large one little beside it, and in between
// the target falls steadily.
func TestCollectorTarget(t *testing.T) {
	const mib = 1 << 20
	if got := collectorTarget(0); got != 1600 {
		t.Errorf("with nothing collected: %d", got)
	}
	if got := collectorTarget(4 << 30); got < collectPercent-1 || got > collectPercent*10/9 {
		t.Errorf("4 GiB live: %d", got)
	}
	last := 1600
	for live := int64(mib); live < 8<<30; live += live / 7 {
		got := collectorTarget(live)
		if got > last && live < 200*mib {
			t.Fatalf("%d MiB live: %d after %d", live/mib, got, last)
		}
		last = got
		garbage := live * int64(got) / 100
		if live > collectRoom/16 && (garbage < collectRoom*3/4 || garbage > max(collectRoom, live*collectPercent/100)*10/9+2*mib) {
			t.Errorf("%d MiB live: %d %%, which is %d MiB", live/mib, got, garbage/mib)
		}
	}
}
