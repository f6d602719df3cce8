// Package regions links this cluster to the clusters of other regions: it looks their nodes up, keeps connections to two of them
// at a time, and knows which nodes answer, how far away they are and what is wrong with them. It decides nothing, and carries no
// checks: package transport/peer does, to the addresses that Links names.
//
// Run owns all goroutines: two for each other region.
package regions

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicecluster/sluice/cluster/gossip"
)

// MaxRegions is the most regions of a List, this one included.
const MaxRegions = 16

// maxTargets is the most addresses and names of one region.
const maxTargets = 64

// List has the regions. It is immutable.
type List struct {
	self    string
	others  []target
	weights map[string]int // 1 without an entry
}

// target is another region, with the peer ports of its nodes.
type target struct {
	name  string
	nodes []gossip.Target
}

// ValidateName returns why the name of a region is invalid, or nil.
func ValidateName(name string) error {
	if len(name) < 1 || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("%q: want 1 to 63 of a-z, 0-9 and -", name[:min(len(name), 100)])
	}
	if name == "auto" {
		return fmt.Errorf("%q: it means the region that uses a key most, in rules; choose another name", name)
	}
	return nil
}

// Parse parses a list of regions, seen from the region self. Each item is name=address; an item without = is one more address of
// the region before it. An address is a host or a DNS name, with the peer port unless that is defaultPort. The list may have this
// region too, so that all regions can have the same one; the addresses of this region are not used. The error has every mistake.
func Parse(self string, items []string, defaultPort uint16) (*List, error) {
	l := &List{self: self}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	names, owner := map[string]bool{}, map[gossip.Target]string{}
	now := -1 // the region of the next address in l.others; -1 for this one
	for i, item := range items {
		name, addr, named := strings.Cut(item, "=")
		switch {
		case !named && i == 0:
			bad("%q: want region=address", item)
			return nil, errors.Join(errs...)
		case !named:
			addr = item
		case ValidateName(name) != nil:
			bad("name of a region %w", ValidateName(name))
			continue
		case names[name]:
			bad("region %q is given twice; write further addresses of a region after a comma, without its name", name)
			continue
		case name == self:
			now, names[name] = -1, true
		default:
			l.others = append(l.others, target{name: name})
			now, names[name] = len(l.others)-1, true
		}
		t, err := gossip.ParseTarget(addr, defaultPort)
		if err != nil {
			bad("address %w", err)
			continue
		}
		if now < 0 {
			continue
		}
		r := &l.others[now]
		if other, taken := owner[t]; taken {
			bad("%s is given for region %q and again for %q", t, other, r.name)
		}
		owner[t] = r.name
		if r.nodes = append(r.nodes, t); len(r.nodes) == maxTargets+1 {
			bad("region %q has more than %d addresses; give it one DNS name that has all of them", r.name, maxTargets)
		}
	}
	switch {
	case len(errs) == 0 && len(l.others) == 0:
		bad("no region but this one, %q; name the others, or leave out both flags", self)
	case len(l.others)+1 > MaxRegions:
		bad("%d regions, this one included; want at most %d", len(l.others)+1, MaxRegions)
	}
	return l, errors.Join(errs...)
}

// maxWeight is the largest weight of a region.
const maxWeight = 1000

// WithWeights returns l with weights of its regions, region=number each; others have 1. The error has every mistake.
func (l *List) WithWeights(items []string) (*List, error) {
	w := &List{l.self, l.others, map[string]int{}}
	var errs []error
	for _, item := range items {
		name, text, ok := strings.Cut(item, "=")
		n, err := strconv.Atoi(text)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%q: want region=weight", item))
		case !l.Has(name):
			errs = append(errs, fmt.Errorf("%q is neither this region, %q, nor in --regions", name, l.self))
		case w.weights[name] != 0:
			errs = append(errs, fmt.Errorf("region %q is given twice", name))
		case err != nil || n < 1 || n > maxWeight:
			errs = append(errs, fmt.Errorf("weight %q of region %q: want a number from 1 to %d", text, name, maxWeight))
		default:
			w.weights[name] = n
		}
	}
	return w, errors.Join(errs...)
}

// weight returns the weight of a region.
func (l *List) weight(name string) int { return cmp.Or(l.weights[name], 1) }

// part returns the weight of this region, and those of all together.
func (l *List) part() (own, all int) {
	own = l.weight(l.self)
	all = own
	for _, t := range l.others {
		all += l.weight(t.name)
	}
	return own, all
}

// Has reports whether the list has a region of that name, this one included.
func (l *List) Has(name string) bool {
	return name == l.self || slices.ContainsFunc(l.others, func(t target) bool { return t.name == name })
}

// Next returns the region that next lacks, "" if there is none, or why next may not follow l while the regions run: it must have the same
// regions, one more or one less.
func (l *List) Next(next *List) (removed string, err error) {
	without := func(a, b *List) (names []string) {
		for _, t := range a.others {
			if !b.Has(t.name) {
				names = append(names, t.name)
			}
		}
		slices.Sort(names)
		return names
	}
	added, gone := without(next, l), without(l, next)
	if len(added)+len(gone) > 1 {
		return "", fmt.Errorf("regions added: %v, removed: %v; add or remove one region at a time, in all regions, until `sluice regions` shows the change", added, gone)
	}
	return strings.Join(gone, ""), nil // one at most
}

// Items splits the text of a file with a list: a region in each line, as region=address,address. What follows a # is left out.
func Items(text []byte) (items []string) {
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		for item := range strings.SplitSeq(line, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
	}
	return items
}

// Loopback reports whether all addresses are on this machine without doubt.
func (l *List) Loopback() bool {
	for _, r := range l.others {
		for _, t := range r.nodes {
			if !t.Loopback() {
				return false
			}
		}
	}
	return true
}
