package migrate

import (
	"bufio"
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// FromEnvironment is the place of values that come from a process's environment.
const FromEnvironment = "environment"

// Value is a setting as it is given. At is file:line or FromEnvironment.
type Value struct{ Name, Text, At string }

// Prefixed reports whether the name begins with prefix, which is not empty.
func (v Value) Prefixed(prefix string) bool { return prefix != "" && strings.HasPrefix(v.Name, prefix) }

var (
	pair      = regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)$`)
	yamlPair  = regexp.MustCompile(`^(?:-\s+)?["']?([A-Z][A-Z0-9_]*)\s*(?:=|:\s)\s*(.*?)["']?$`)
	yamlName  = regexp.MustCompile(`^-\s+name:\s*["']?([A-Z][A-Z0-9_]*)["']?$`)
	yamlValue = regexp.MustCompile(`^value:\s*(.*)$`)
)

// Read returns the settings in a file of lines NAME=VALUE, where lines may be empty, begin with # or with export, and values may be
// quoted. Of a YAML file it returns those of environments, as in Compose and Kubernetes: NAME: VALUE, - NAME=VALUE, and - name: NAME
// followed by value: VALUE. An error names the file and the line.
func Read(file string, data []byte) ([]Value, error) {
	var values []Value
	isYAML := filepath.Ext(file) == ".yaml" || filepath.Ext(file) == ".yml"
	lines, name := bufio.NewScanner(bytes.NewReader(data)), ""
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line, at := strings.TrimSpace(lines.Text()), fmt.Sprintf("%s:%d", file, n)
		m, named := pair.FindStringSubmatch(line), name
		if isYAML {
			m, name = yamlPair.FindStringSubmatch(line), ""
			if n := yamlName.FindStringSubmatch(line); n != nil {
				name = n[1]
			} else if v := yamlValue.FindStringSubmatch(line); v != nil && named != "" {
				m = []string{"", named, v[1]}
			}
		}
		switch {
		case m != nil:
			values = append(values, Value{m[1], unquote(m[2]), at})
		case line != "" && !strings.HasPrefix(line, "#") && !isYAML:
			return nil, fmt.Errorf("%s: want NAME=VALUE", at)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return values, nil
}

// unquote removes quotes around a value.
func unquote(s string) string {
	if n := len(s); n > 1 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	return s
}
