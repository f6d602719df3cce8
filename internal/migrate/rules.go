package migrate

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/internal/rulefiles"
	"github.com/sluice-project/sluice/rules"
)

// readRules loads the rule files as a node would, says what of them would not be in force, and puts files into the report if
// their rules have to be in shadow mode.
func (c *conversion) readRules() error {
	dir := c.options.Rules
	if dir == "" {
		return nil
	}
	app := filepath.Base(c.flag("rules"))
	for _, below := range []string{filepath.Join(c.text("RUNTIME_SUBDIRECTORY"), app), app} {
		if info, err := os.Stat(filepath.Join(dir, below)); err == nil && info.IsDir() {
			dir = filepath.Join(dir, below)
			break
		}
	}
	o := rules.Options{MergeDomains: c.flag("merge-domains") != ""}
	set, skipped, err := rulefiles.Load(dir, o)
	if err != nil {
		return err
	}
	for _, w := range set.Warnings() {
		c.report.Todo = append(c.report.Todo, Note{w.Path, fmt.Sprintf("%s:%d", w.File, w.Line), w.Text})
	}
	for _, s := range skipped {
		c.report.Todo = append(c.report.Todo, Note{"", s.File, "is not read: " + s.Reason})
	}
	global, _ := boolean(c.text("SHADOW_MODE"))
	quota, _ := boolean(c.text("QUOTA_MODE"))
	if !global && !quota {
		return nil
	}
	return c.shadow(dir, set, o)
}

// shadow puts the files of the rules of set into the report, with shadow_mode: true in each rule that has a limit.
func (c *conversion) shadow(dir string, set *rules.Set, o rules.Options) error {
	var files []rules.File
	for _, r := range set.Rules() {
		if slices.ContainsFunc(files, func(f rules.File) bool { return f.Name == r.File }) {
			continue
		}
		data, err := os.ReadFile(r.File)
		if err == nil {
			data, err = shadowed(data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.File, err)
		}
		files = append(files, rules.File{Name: r.File, Data: data})
		path, err := filepath.Rel(dir, r.File)
		if err != nil {
			return err
		}
		c.report.Files = append(c.report.Files, File{filepath.ToSlash(path), string(data)})
	}
	set, err := rules.Parse(files, o)
	if err != nil {
		return err
	}
	for _, r := range set.Rules() {
		if r.Limits != nil && !r.Shadow {
			c.report.Todo = append(c.report.Todo, Note{r.Name, fmt.Sprintf("%s:%d", r.File, r.Line), "needs shadow_mode: true, which could not be written"})
		}
	}
	return nil
}

// shadowed is a rule file with shadow_mode: true before each rate_limit of a descriptor. Nothing else changes.
func shadowed(data []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	type edit struct {
		at      *yaml.Node
		removed int // characters
		text    string
	}
	var edits []edit
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		var limit, mode *yaml.Node
		for i, part := range n.Content {
			if n.Kind != yaml.MappingNode || i%2 == 1 {
				visit(part)
			} else if part.Value == "rate_limit" {
				limit = part
			} else if part.Value == "shadow_mode" {
				mode = n.Content[i+1]
			}
		}
		switch {
		case limit == nil:
		case mode != nil:
			edits = append(edits, edit{mode, len(mode.Value), "true"})
		case n.Style&yaml.FlowStyle != 0:
			edits = append(edits, edit{limit, 0, "shadow_mode: true, "})
		default:
			edits = append(edits, edit{limit, 0, "shadow_mode: true\n" + strings.Repeat(" ", limit.Column-1)})
		}
	}
	visit(&doc)
	// From the end, so that the places of the others stay.
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Or(b.at.Line-a.at.Line, b.at.Column-a.at.Column) })
	lines := strings.Split(string(data), "\n")
	for _, e := range edits {
		line := []rune(lines[e.at.Line-1])
		lines[e.at.Line-1] = string(line[:e.at.Column-1]) + e.text + string(line[e.at.Column-1+e.removed:])
	}
	return []byte(strings.Join(lines, "\n")), nil
}
