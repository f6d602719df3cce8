// Package arch holds the rules about which part of sluice may use which: it
// reads the source of the whole module and says where a rule is broken. Its
// test fails the build then.
//
// It decides from source text alone, so that files for every operating system
// count, and knows nothing about what the code does. It starts no goroutine.
package arch

import (
	"fmt"
	"slices"
	"strings"
)

// Broken is one place where a rule does not hold.
type Broken struct {
	// Pos is file:line, or the folder, relative to the root.
	Pos string
	// What is wrong there, and why it is a rule.
	What, Why string
}

func (b Broken) String() string { return fmt.Sprintf("%s: %s (%s)", b.Pos, b.What, b.Why) }

// Check returns every place of t where a rule is broken.
func Check(t *Tree) []Broken {
	c := checker{tree: t}
	c.purity()
	c.outsiders()
	c.apart()
	c.ownHomes()
	c.only()
	c.modules()
	c.names()
	c.top()
	return c.broken
}

type checker struct {
	tree   *Tree
	broken []Broken
}

func (c *checker) add(pos, why, format string, args ...any) {
	c.broken = append(c.broken, Broken{pos, fmt.Sprintf(format, args...), why})
}

// eachImport calls f for every import of the tree and says whether it stands in a
// test, since tests are judged apart.
func (c *checker) eachImport(f func(p *Package, i Import, test bool)) {
	for _, p := range c.tree.Packages {
		for _, i := range p.Imports {
			f(p, i, false)
		}
		for _, i := range p.TestImports {
			f(p, i, true)
		}
	}
}

func (c *checker) purity() {
	for _, rule := range pure {
		for _, p := range c.tree.Packages {
			if !within(p.Dir, rule.dir) {
				continue
			}
			for _, i := range p.Imports {
				if reason, ok := isImpure(i); ok {
					c.add(i.Pos, rule.why, "%s is pure and imports %s, which %s", p.Dir, i.Path, reason)
				}
			}
			for _, g := range p.Goroutines {
				c.add(g.Pos, rule.why, "%s is pure and starts a goroutine: %s", p.Dir, g.What)
			}
			for _, k := range p.Clocks {
				c.add(k.Pos, rule.why, "%s is pure and uses %s: take the time as a parameter", p.Dir, k.What)
			}
		}
	}
}

// isImpure judges an import of a pure package; of this module it may use pure packages alone.
func isImpure(i Import) (reason string, bad bool) {
	if own, ok := i.Own(); ok {
		for _, rule := range pure {
			if within(own, rule.dir) {
				return "", false
			}
		}
		return "is not pure itself", true
	}
	if slices.Contains(harmless, i.Path) {
		return "", false
	}
	for _, rule := range impure {
		if covers(rule.path, i.Path) {
			return rule.why, true
		}
	}
	return "", false
}

func (c *checker) outsiders() {
	for _, rule := range outsiders {
		c.unreachable(rule.a, rule.b, rule.why)
		c.unreachable(rule.b, rule.a, rule.why)
	}
}

// unreachable reports each import in from that leads to a package in to, at
// once or by way of others. Only what users compile counts on the way.
func (c *checker) unreachable(from, to, why string) {
	c.eachImport(func(p *Package, i Import, _ bool) {
		own, ok := i.Own()
		if !ok || !within(p.Dir, from) {
			return
		}
		if way := c.way(own, to, nil); way != nil {
			c.add(i.Pos, why, "%s reaches %s by way of %s", p.Dir, to, strings.Join(way, ", "))
		}
	})
}

// way returns the packages from dir to the first one in to, or nil. seen are
// those on the way so far.
func (c *checker) way(dir, to string, seen []string) []string {
	if within(dir, to) {
		return append(seen, dir)
	}
	seen = append(seen, dir)
	for _, p := range c.tree.Packages {
		if p.Dir != dir {
			continue
		}
		for _, i := range p.Imports {
			if own, ok := i.Own(); ok && !slices.Contains(seen, own) {
				if way := c.way(own, to, slices.Clone(seen)); way != nil {
					return way
				}
			}
		}
	}
	return nil
}

func (c *checker) apart() {
	for _, rule := range apart {
		c.eachImport(func(p *Package, i Import, test bool) {
			own, ok := i.Own()
			if !ok || test {
				return
			}
			for _, dir := range rule.dirs {
				if within(own, dir) && !within(p.Dir, dir) && withinAny(p.Dir, rule.dirs) {
					c.add(i.Pos, rule.why, "%s imports %s", p.Dir, own)
				}
			}
		})
	}
}

func (c *checker) ownHomes() {
	for _, rule := range ownHomes {
		c.eachImport(func(p *Package, i Import, test bool) {
			own, ok := i.Own()
			if !ok || !within(own, rule.dir) || withinAny(p.Dir, rule.homes) || test && withinAny(p.Dir, rule.test) {
				return
			}
			c.add(i.Pos, rule.why, "%s imports %s", p.Dir, own)
		})
	}
}

func (c *checker) only() {
	for _, rule := range only {
		for _, p := range c.tree.Packages {
			if !within(p.Dir, rule.dir) {
				continue
			}
			for _, i := range p.Imports {
				if own, ok := i.Own(); ok && !within(own, rule.dir) && !withinAny(own, rule.uses) {
					c.add(i.Pos, rule.why, "%s imports %s", p.Dir, own)
				}
			}
		}
	}
}

func (c *checker) modules() {
	c.eachImport(func(p *Package, i Import, test bool) {
		if _, own := i.Own(); own || i.Standard() {
			return
		}
		for _, rule := range modules {
			if !within(i.Path, rule.path) {
				continue
			}
			if !withinAny(p.Dir, rule.homes) && !(test && withinAny(p.Dir, rule.test)) {
				c.add(i.Pos, rule.why, "%s imports %s", p.Dir, i.Path)
			}
			return
		}
		c.add(i.Pos, "every library has a home", "%s imports %s, which internal/arch does not know", p.Dir, i.Path)
	})
}

func (c *checker) names() {
	const why = "a name says what is inside"
	for _, p := range c.tree.Packages {
		for dir := range strings.SplitSeq(p.Dir, "/") {
			if isVague(dir) {
				c.add(p.Dir, why, "folder %s has a vague name", dir)
			}
		}
		for _, name := range p.Names {
			if isVague(name) {
				c.add(p.Dir, why, "package %s has a vague name", name)
			}
		}
		for _, name := range p.Files {
			if isVague(name) {
				c.add(p.Dir+"/"+name, why, "file %s has a vague name", name)
			}
		}
	}
}

func (c *checker) top() {
	for _, name := range c.tree.Top {
		if !strings.HasPrefix(name, ".") && !slices.Contains(top, name) {
			c.add(name, "the root is the table of contents", "%s is not a place of the project", name)
		}
	}
}
