// Package yamldoc reads YAML strictly: every fault has a line, a path and a
// reason, reading goes on after a fault so that all are told at once, and size,
// depth and the expansion of aliases are bounded. It knows nothing of rules. It
// is pure: bytes in, values and faults out, no goroutine.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxBytes is the largest document that is read.
	MaxBytes = 1 << 20
	// MaxFaults is how many faults are kept for one document; more are counted only.
	MaxFaults = 50
	// maxAliased is how many nodes aliases may add to what the document spells
	// out. Ten lines of aliases of aliases can stand for billions.
	maxAliased = 1 << 17
)

// Fault is one thing that is wrong with a document.
type Fault struct {
	// Line counts from 1.
	Line int
	// Path leads to the value, for people. It may be empty.
	Path   string
	Reason string
}

// Open parses data, which must be one YAML document, and returns its root with
// a Reader for it. The root is nil if data cannot be read at all; the Reader
// then holds the fault.
//
// The YAML parser itself refuses nesting beyond 10,000 and takes time
// proportional to the size of its input, so the size is the only thing that must be
// checked before it runs.
func Open(data []byte) (*yaml.Node, *Reader) {
	r := &Reader{budget: len(data) + maxAliased}
	if len(data) > MaxBytes {
		r.faultAt(1, "", fmt.Sprintf("the file has %d bytes, more than the %d allowed; split it", len(data), MaxBytes))
		return nil, r
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	root := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: 1}
	for first := true; ; first = false {
		var document yaml.Node
		err := dec.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return root, r
		case err != nil:
			r.syntax(err)
			return nil, r
		case len(document.Content) == 0:
		case first:
			root = document.Content[0]
		case !IsNull(document.Content[0]):
			r.faultAt(document.Content[0].Line, "", "a second YAML document begins here; a file holds one, so put it in a file of its own")
			return nil, r
		}
	}
}

var syntaxLine = regexp.MustCompile(`^line (\d+): `)

// syntax reports an error of the YAML parser, which names a line unless it is the first.
func (r *Reader) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	if strings.HasPrefix(text, "exceeded max depth") { // valid, but beyond any use
		r.faultAt(line, "", "is nested far deeper than any such file may be: "+text)
		return
	}
	r.faultAt(line, "", "not YAML: "+text)
}
