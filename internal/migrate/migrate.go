// Package migrate converts the settings of gubernator and of envoyproxy/ratelimit into those of `sluice serve`. Each product is a
// table of all its settings with what becomes of them; the tables of the migration guides are made of it. The package reads no
// environment and starts no goroutine.
package migrate

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// Product is a rate limiter whose settings can be converted: Gubernator or Ratelimit.
type Product struct {
	// Name is the one on the command line, Title the one for readers, with the version whose settings are known.
	Name, Title string
	// Prefix is that of all settings but those of OpenTelemetry; "" if they have none in common.
	Prefix   string
	settings []setting
	finish   func(*conversion) error
}

// setting is what becomes of a setting, or of several alike.
type setting struct {
	// names are separated by spaces.
	names string
	fate  fate
	// initial is the product's default. A converted setting that is not given has it; one without a counterpart needs nothing then.
	initial string
	// to is the conversion of a converted setting.
	to convert
	// text is for readers: what becomes of the setting, or why nothing does.
	text string
}

// convert sets flags, or adds remarks. An error says what is wrong with the value.
type convert func(c *conversion, value string) error

// fate is what becomes of a setting.
type fate uint8

const (
	converted fate = iota // has flags
	needless              // nothing has to be done, whatever the value
	missing               // has no counterpart; text says what to do instead
)

// Options are for what the settings of the other product do not say.
type Options struct {
	// Join are the nodes of the cluster; none for those that the settings name.
	Join []string
	// Rules is the folder of rule files that Ratelimit's settings name, as seen from here; "" if it is not at hand.
	Rules string
}

// Report is the result of a conversion. Its lists are in the order of the product's table.
type Report struct {
	Product string `json:"product"`
	// Flags are settings of `sluice serve`.
	Flags []Flag `json:"flags"`
	// Todo is what has no counterpart, or needs a decision.
	Todo []Note `json:"todo"`
	// NotNeeded are settings without effect on sluice.
	NotNeeded []Note `json:"not_needed"`
	// Unknown are no settings of the product.
	Unknown []Note `json:"unknown"`
	// Files are rule files that have to be changed, with their new text.
	Files []File `json:"files"`
}

// Flag is a setting of `sluice serve`, without dashes, and where it comes from.
type Flag struct {
	Name    string `json:"flag"`
	Value   string `json:"value"`
	Setting string `json:"setting"`
	At      string `json:"at"`

	initial bool // from the product's default
}

// Note is a remark on a setting. At is file:line, "environment", "default", or "" if it is on none.
type Note struct {
	Setting string `json:"setting,omitempty"`
	At      string `json:"at,omitempty"`
	Text    string `json:"text"`
}

// File is a rule file by its path in the folder of rules.
type File struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// conversion is one in progress.
type conversion struct {
	options Options
	values  map[string]Value
	report  *Report
	now     Value // the setting in hand
}

// Convert converts settings; of several with one name the last counts. Errors name the place and the setting, and are joined.
func (p *Product) Convert(values []Value, o Options) (*Report, error) {
	c := &conversion{options: o, values: map[string]Value{}, report: &Report{
		Product: p.Name, Flags: []Flag{}, Todo: []Note{}, NotNeeded: []Note{}, Unknown: []Note{}, Files: []File{}}}
	known := p.known()
	for _, v := range values {
		if known[v.Name] {
			c.values[v.Name] = v
		} else if v.Prefixed(p.Prefix) || v.At != FromEnvironment {
			c.report.Unknown = append(c.report.Unknown, Note{v.Name, v.At, "is no setting of " + p.Title})
		}
	}
	var errs []error
	for _, s := range p.settings {
		for name := range strings.FieldsSeq(s.names) {
			c.now = c.values[name]
			if c.now.Text == "" {
				c.now = Value{name, s.initial, "default"}
			}
			if err := c.one(&s); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", c.now.At, name, err))
			}
		}
	}
	c.now = Value{}
	return c.report, errors.Join(append(errs, p.finish(c))...)
}

// known are the names of all settings.
func (p *Product) known() map[string]bool {
	known := map[string]bool{}
	for _, s := range p.settings {
		for name := range strings.FieldsSeq(s.names) {
			known[name] = true
		}
	}
	return known
}

// one converts the setting in hand.
func (c *conversion) one(s *setting) error {
	given := c.now.At != "default"
	switch {
	case s.fate == converted && c.now.Text != "":
		flags, todo := len(c.report.Flags), len(c.report.Todo)
		if err := s.to(c, c.now.Text); err != nil {
			return err
		}
		if given && len(c.report.Flags) == flags && len(c.report.Todo) == todo {
			c.skip(s.text)
		}
	case !given:
	case s.fate == missing && c.now.Text != s.initial:
		c.todo(s.text)
	case s.fate == missing:
		c.skip("it is the default")
	default:
		c.skip(s.text)
	}
	return nil
}

// set sets a flag. A given setting wins over the default of another one, and the first of two given ones over the second, which is
// to be looked at then.
func (c *conversion) set(flag, value string) {
	f := Flag{flag, value, c.now.Name, c.now.At, c.now.At == "default"}
	for i, have := range c.report.Flags {
		if have.Name != flag {
			continue
		}
		if have.initial {
			c.report.Flags[i] = f
		} else if !f.initial && have.Value != value {
			c.todo(fmt.Sprintf("gives --%s %s, but %s gives %s, which is used", flag, value, have.Setting, have.Value))
		}
		return
	}
	c.report.Flags = append(c.report.Flags, f)
}

// flag is the value of a flag that was set, or "".
func (c *conversion) flag(name string) string {
	for _, f := range c.report.Flags {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

func (c *conversion) todo(text string) {
	c.report.Todo = append(c.report.Todo, Note{c.now.Name, c.now.At, text})
}

func (c *conversion) skip(text string) {
	c.report.NotNeeded = append(c.report.NotNeeded, Note{c.now.Name, c.now.At, text})
}

// text is another setting's value as given, or "".
func (c *conversion) text(name string) string { return c.values[name].Text }

// found sets the flags of a cluster whose nodes join is for, those of the options if they have any.
func (c *conversion) found(join []string) {
	if len(c.options.Join) > 0 {
		join, c.now = c.options.Join, Value{Name: "--join", At: "command line"}
	}
	expect := "1"
	switch len(join) {
	case 0:
		c.todo("one node stands alone and loses its counters when it crashes: start three, with --join and the addresses of all of them")
	case 1:
		expect = "3"
		c.set("join", join[0])
		c.todo("--join " + join[0] + " is taken for a name of all nodes, and --bootstrap-expect for their number: it has to be more than half of the nodes that start")
	default:
		expect = fmt.Sprint(len(join))
		c.set("join", strings.Join(join, ","))
		c.todo("--bootstrap-expect has to be more than half of the nodes that start: " + expect + " is the number of those in --join")
	}
	c.set("bootstrap-expect", expect)
	if ip := net.ParseIP(c.flag("bind")); ip != nil && !ip.IsLoopback() {
		c.set("secret-file", "secret")
		c.todo("make a secret for all nodes: head -c 32 /dev/urandom | base64 > secret")
	}
	if len(join) > 0 {
		c.todo("open the ports 7462 (TCP) and " + c.gossipPort() + " (TCP and UDP) between the nodes, and only there")
	}
}

func (c *conversion) gossipPort() string {
	if port := c.flag("gossip-port"); port != "" {
		return port
	}
	return "7463"
}
