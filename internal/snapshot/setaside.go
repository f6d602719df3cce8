package snapshot

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxAside is how many refused files are kept.
const maxAside = 3

// aside is a refused file: when it was set aside, and which one of that second.
type aside struct {
	name   string
	second int64
	nth    int
}

const asidePrefix = fileName + ".refused-"

// SetAside renames the snapshot, so that people can look at it and the next one is not
// refused too, and returns its new path. The newest three are kept.
func (d *Dir) SetAside(now time.Time) (string, error) {
	name, err := d.setAside(max(0, now.Unix()))
	if err != nil {
		return "", fmt.Errorf("set snapshot %s aside: %w", d.file(fileName), bare(err))
	}
	return d.file(name), nil
}

func (d *Dir) setAside(second int64) (string, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return "", err
	}
	var old []aside
	nth := 0
	for _, e := range entries {
		a, ok := parseAside(e.Name())
		if !ok {
			continue
		}
		old = append(old, a)
		if a.second == second {
			nth = max(nth, a.nth+1)
		}
	}
	name := asidePrefix + strconv.FormatInt(second, 10)
	if nth > 0 {
		name += "-" + strconv.Itoa(nth)
	}
	if err := d.root.Rename(fileName, name); err != nil {
		return "", err
	}
	slices.SortFunc(old, func(a, b aside) int {
		return cmp.Or(cmp.Compare(a.second, b.second), cmp.Compare(a.nth, b.nth))
	})
	for len(old) >= maxAside {
		if err := d.root.RemoveAll(old[0].name); err != nil {
			return "", err
		}
		old = old[1:]
	}
	return name, d.sync()
}

func parseAside(name string) (a aside, ok bool) {
	rest, ok := strings.CutPrefix(name, asidePrefix)
	if !ok {
		return a, false
	}
	number, nth, many := strings.Cut(rest, "-")
	second, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return a, false
	}
	a = aside{name: name, second: second}
	if many {
		if a.nth, err = strconv.Atoi(nth); err != nil || a.nth < 1 {
			return a, false
		}
	}
	return a, true
}
