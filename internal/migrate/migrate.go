// Package migrate converts the settings of gubernator and of envoyproxy/ratelimit into those of `sluice serve`. A product is a table
// of all its settings with what becomes of each; the tables of the migration guides are made of it.
package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Product is a rate limiter whose settings can be converted. Name is the one on the command line.
type Product struct {
	Name, Title string
	settings    []setting
}

// setting is what becomes of a setting, or of several alike.
type setting struct {
	names string // separated by spaces
	fate  string
	// initial is the default, in force if a converted setting is not given. A missing one with it needs nothing.
	initial string
	to      convert // of a converted setting
	text    string  // what becomes of it, why nothing has to be done, or what to do instead
}

const converted, needless, missing = "flags", "not needed", "no counterpart" // fates

// Value is a setting as it is given. At is file:line.
type Value struct{ Name, Text, At string }

// Report is the result of a conversion.
type Report struct {
	Product string            `json:"product"`
	Notes   []Note            `json:"settings"`        // in the order of the product's table
	Files   map[string]string `json:"files,omitempty"` // rule files that have to be changed, by their paths in the folder
}

// Note is a flag of `sluice serve`, without dashes, or a remark. At is file:line or "default"; it and Setting are empty if no setting
// led to the note.
type Note struct {
	Outcome Outcome `json:"outcome"`
	Setting string  `json:"setting,omitempty"`
	At      string  `json:"at,omitempty"`
	Flag    string  `json:"flag,omitempty"`
	Value   string  `json:"value,omitempty"`
	Text    string  `json:"text,omitempty"`
}

// Outcome is what a note is about.
type Outcome string

const (
	Flag    Outcome = "flag"
	Todo    Outcome = "to do"         // has no counterpart, or needs a decision
	Nothing Outcome = "nothing to do" // is a default, or sluice does without
	Unknown Outcome = "unknown"       // is no setting of the product
)

var pair = regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)$`)

// Read returns the settings in the text of a file with lines NAME=VALUE. Lines may be empty, or begin with # or export; values may be
// quoted.
func Read(file, text string) (values []Value, err error) {
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := pair.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("%s:%d: want NAME=VALUE, as env prints it in the container: YAML is not read", file, i+1)
		}
		values = append(values, Value{m[1], strings.Trim(m[2], `"'`), fmt.Sprintf("%s:%d", file, i+1)})
	}
	return values, nil
}

// conversion is one in progress.
type conversion struct {
	*Report
	rules  string // their folder, or ""
	values map[string]string
	now    Note // the setting in hand
	join   []string
}

// Convert converts values; of several with one name the last counts. join are all nodes of the new cluster, or none for those of the
// settings, and rules is the folder of the rule files, or "". Errors name the place and the setting, and are joined.
func (p *Product) Convert(values []Value, join []string, rules string) (*Report, error) {
	c := &conversion{&Report{p.Name, []Note{}, map[string]string{}}, rules, map[string]string{}, Note{}, nil}
	at, known := map[string]string{}, map[string]bool{}
	for _, v := range values {
		at[v.Name], c.values[v.Name] = v.At, v.Text
	}
	var errs []error
	for _, s := range p.settings {
		for name := range strings.FieldsSeq(s.names) {
			known[name] = true
			c.now = Note{Setting: name, At: at[name]}
			if err := c.one(&s, c.values[name]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", c.now.At, name, err))
			}
		}
	}
	for _, v := range values {
		if !known[v.Name] {
			c.now = Note{Setting: v.Name, At: v.At}
			c.note(Unknown, "is no setting of "+p.Title)
		}
	}
	c.now = Note{}
	errs = append(errs, c.readRules())
	if len(join) > 0 {
		c.join = join
	}
	c.found(len(join) > 1)
	return c.Report, errors.Join(errs...)
}

func (c *conversion) one(s *setting, text string) error {
	given, before := text != "", len(c.Notes)
	if !given {
		text, c.now.At = s.initial, "default"
	}
	if s.fate == converted && text != "" {
		if err := s.to(c, text); err != nil {
			return err
		}
	}
	switch {
	case !given || before < len(c.Notes):
	case s.fate == missing && !slices.Contains(strings.Fields(s.initial), text):
		c.note(Todo, s.text)
	case s.fate == missing:
		c.note(Nothing, "it is the default")
	default:
		c.note(Nothing, s.text)
	}
	return nil
}

func (c *conversion) note(o Outcome, text string) {
	c.Notes = append(c.Notes, Note{Outcome: o, Setting: c.now.Setting, At: c.now.At, Text: text})
}

// set sets a flag. A setting that is given wins over the default of another one, and the first that is given over the second.
func (c *conversion) set(flag, value string) {
	n := Note{Outcome: Flag, Setting: c.now.Setting, At: c.now.At, Flag: flag, Value: value}
	have := c.flag(flag)
	switch {
	case have == nil:
		c.Notes = append(c.Notes, n)
	case have.At == "default":
		*have = n
	case n.At != "default" && have.Value != value:
		c.note(Todo, fmt.Sprintf("gives --%s %s; %s gives %s, which is used", flag, value, have.Setting, have.Value))
	}
}

// flag is a flag that is set, or nil.
func (c *conversion) flag(name string) *Note {
	if i := slices.IndexFunc(c.Notes, func(n Note) bool { return n.Flag == name }); i >= 0 {
		return &c.Notes[i]
	}
	return nil
}

// found sets what a node needs to found or join a cluster. all says that c.join has an address of each node.
func (c *conversion) found(all bool) {
	if len(c.join) > 0 {
		c.set("join", strings.Join(c.join, ","))
		if !all {
			c.note(Todo, "--bootstrap-expect must be more than half of the nodes that start")
		}
		gossip := "7463"
		if f := c.flag("gossip-port"); f != nil {
			gossip = f.Value
		}
		c.note(Todo, "open the peer port, 7462 (TCP), and the gossip port, "+gossip+" (TCP and UDP), between nodes only")
	} else {
		c.note(Todo, "a single node loses its counters when it crashes: start three, with --join and the addresses of all")
	}
	n := len(c.join) // one is a name of all nodes
	c.set("bootstrap-expect", strconv.Itoa(cmp.Or(map[int]int{0: 1, 1: 3}[n], n)))
	if bind := c.flag("bind"); bind != nil && !net.ParseIP(bind.Value).IsLoopback() {
		c.set("secret-file", "secret")
		c.note(Todo, "make a secret for all nodes: head -c 32 /dev/urandom | base64 > secret")
	}
}

// String is a file for `sluice serve --config`, with all remarks as comments.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# For sluice serve --config, from settings of %s.\n", r.Product)
	for _, o := range []Outcome{Flag, Todo, Nothing, Unknown} {
		title := "\n# " + strings.ToUpper(string(o[:1])) + string(o[1:]) + ":\n"
		for _, n := range r.Notes {
			where := strings.Trim(n.At+": "+n.Setting, ": ")
			switch {
			case n.Outcome != o:
			case o == Flag:
				b.WriteString(strings.TrimSuffix(fmt.Sprintf("%s: %q # %s", n.Flag, n.Value, where), " # ") + "\n")
			default:
				b.WriteString(title + "#   " + strings.TrimPrefix(where+": ", ": ") + n.Text + "\n")
				title = ""
			}
		}
	}
	return b.String()
}
