// Package arch has the rules about which packages of sluice may import which. It reads the source of all modules in go.work,
// with the files for every operating system, and reports where a rule is broken; its test fails then.
package arch

import (
	"fmt"
	"regexp"
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
	for _, rule := range unrelated {
		c.unreachable(rule.a, rule.b, rule.why)
		c.unreachable(rule.b, rule.a, rule.why)
	}
	c.imports()
	c.names()
	c.docs()
	for _, name := range t.Top {
		if !strings.HasPrefix(name, ".") && !slices.Contains(top, name) {
			c.add(name, "the root is the table of contents", "%s is not a place of the project", name)
		}
	}
	for _, dir := range t.Apart {
		if !withinAny(dir, apart) {
			c.add(dir, "`make test` and `tools/lint` cover the modules in go.work", "module %s is not in go.work", dir)
		}
	}
	return c.broken
}

type checker struct {
	tree   *Tree
	broken []Broken
}

func (c *checker) add(pos, why, format string, args ...any) {
	c.broken = append(c.broken, Broken{pos, fmt.Sprintf(format, args...), why})
}

// eachImport calls f for every import of the tree; test says that it is in a test file.
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
			if !within(p.Dir, rule.dir) || slices.Contains(harmless, p.Dir) {
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
		if slices.Contains(harmless, own) {
			return "", false
		}
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
		if within(i.Path, rule.path) {
			return rule.why, true
		}
	}
	return "", false
}

// unreachable reports each import in from that leads to a package in to, directly or through others. Imports of test
// files count only as the first step.
func (c *checker) unreachable(from, to, why string) {
	c.eachImport(func(p *Package, i Import, _ bool) {
		if !within(p.Dir, from) {
			return
		}
		if way := c.way(i.target(), to, nil); way != nil {
			c.add(i.Pos, why, "%s reaches %s by way of %s", p.Dir, to, strings.Join(way, ", "))
		}
	})
}

// way returns the packages from dir, or a library's path, to the first one in to, or nil. seen are those on the way so far.
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
			if target := i.target(); !slices.Contains(seen, target) {
				if way := c.way(target, to, slices.Clone(seen)); way != nil {
					return way
				}
			}
		}
	}
	return nil
}

// imports checks each import against apis, only and homes.
func (c *checker) imports() {
	c.eachImport(func(p *Package, i Import, test bool) {
		_, own := i.Own()
		target := i.target()
		from, to := apiOf(p.Dir), apiOf(target)
		if own && !test && from != "" && to != "" && from != to {
			c.add(i.Pos, "each API calls the node in-process: shared code belongs in limiter, or in transport if it is about the wire",
				"%s imports %s", p.Dir, target)
		}
		for _, rule := range only {
			if !own || test || !within(p.Dir, rule.dir) {
				continue
			}
			if !within(target, rule.dir) && !withinAny(target, rule.uses) {
				c.add(i.Pos, rule.why, "%s imports %s", p.Dir, target)
			}
			break
		}
		for _, rule := range homes {
			if !within(target, rule.path) {
				continue
			}
			if !withinAny(p.Dir, rule.homes) && !(test && withinAny(p.Dir, rule.test)) {
				c.add(i.Pos, rule.why, "%s imports %s", p.Dir, target)
			}
			return
		}
		if !own && !i.Standard() {
			c.add(i.Pos, "every library has a home", "%s imports %s, which test/arch does not know", p.Dir, i.Path)
		}
	})
}

// docs finds comments that begin with another name than that of their function or type: a name that was changed.
func (c *checker) docs() {
	for _, p := range c.tree.Packages {
		for _, d := range p.Docs {
			if d.First != d.Name && camel.MatchString(d.First) {
				c.add(d.Pos, "a comment begins with the name of its function or type", "the comment of %s begins with %s", d.Name, d.First)
			}
		}
	}
}

// camel matches names of several words.
var camel = regexp.MustCompile(`^[A-Za-z][a-z0-9]+[A-Z]\w*$`)

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
