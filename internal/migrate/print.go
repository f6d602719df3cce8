package migrate

import (
	"fmt"
	"regexp"
	"strings"
)

// String is a configuration file for `sluice serve --config` with remarks in comments, followed by the rule files that have to be
// changed, each as a YAML document of its own.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# For sluice serve --config: made of the settings of %s by sluice migrate.\n", r.Product)
	for _, f := range r.Flags {
		fmt.Fprintf(&b, "%-40s", f.Name+": "+yamlWord(f.Value))
		if f.Setting != "" {
			fmt.Fprintf(&b, " # %s, %s", f.Setting, f.At)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n# The same as flags:\n#   sluice serve %s\n", strings.Join(r.Args(), " "))
	for _, list := range []struct {
		title string
		notes []Note
	}{{"To do", r.Todo}, {"Not needed", r.NotNeeded}, {"Unknown", r.Unknown}} {
		if len(list.notes) > 0 {
			fmt.Fprintf(&b, "\n# %s (%d):\n", list.title, len(list.notes))
		}
		for _, n := range list.notes {
			fmt.Fprintf(&b, "#   %s\n", n)
		}
	}
	for _, f := range r.Files {
		fmt.Fprintf(&b, "---\n# rules/%s\n%s", f.Path, f.Text)
	}
	return b.String()
}

// String begins with the place and the setting, if there are any.
func (n Note) String() string {
	text := n.Text
	for _, before := range []string{n.Setting, n.At} {
		if before != "" {
			text = before + ": " + text
		}
	}
	return text
}

// Args are the flags for a shell.
func (r *Report) Args() []string {
	args := make([]string, len(r.Flags))
	for i, f := range r.Flags {
		args[i] = "--" + f.Name + "=" + f.Value
		if !plain.MatchString(args[i]) {
			args[i] = "'" + strings.ReplaceAll(args[i], "'", `'\''`) + "'"
		}
	}
	return args
}

// plain are words that neither a shell nor YAML reads as anything else.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./,=-][A-Za-z0-9_./,:@=-]*$`)

func yamlWord(s string) string {
	if plain.MatchString(s) && !strings.HasPrefix(s, "-") && !strings.HasSuffix(s, ":") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
