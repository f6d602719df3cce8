package limiter

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/sluice-project/sluice/rules"
)

// A name is a byte of flags, and then sized texts: the domain, the rule, and keys and values in turn. Nodes
// tell each other names in this form.
const (
	nameWhole = 1
	nameCut   = 2
	// maxName and maxText bound what is kept of a name, and of its domain, its rule and each key, in bytes. What
	// is longer is cut.
	maxName = 512
	maxText = 128
)

// named makes the name of a check. It is the one place where values of descriptors enter what is counted, private
// ones as their hash.
type named struct {
	check  *Check
	rule   *rules.Rule
	set    *rules.Set
	hasher Hasher
}

// AppendName implements heavy.Namer.
func (n *named) AppendName(dst []byte) []byte {
	first := len(dst)
	dst = append(dst, nameWhole)
	rule := ""
	if n.rule != nil {
		rule = n.rule.Name
	}
	whole := true
	text := func(s string) {
		whole = whole && len(s) <= maxText
		dst = appendText(dst, s)
	}
	text(n.check.Domain)
	text(rule)
	for i, e := range n.check.Descriptor {
		if len(dst)-first+len(e.Key)+len(e.Value) > maxName {
			whole = false
			break
		}
		text(e.Key)
		// The value's length is not known before it is written: an address may become its block.
		at := len(dst) + 2
		dst = n.hasher.AppendShown(append(dst, 0, 0), n.set, n.rule, n.check.Domain, i, e)
		if len(dst)-at > maxName {
			dst, whole = dst[:at+maxName], false
		}
		binary.BigEndian.PutUint16(dst[at-2:], uint16(len(dst)-at))
	}
	if !whole {
		dst[first] = nameCut
	}
	return dst
}

// appendText appends s, cut to maxText, with its length before it.
func appendText(dst []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// isOfDomain reports whether name begins with domain.
func isOfDomain(name []byte, domain string) bool {
	return bytes.HasPrefix(name[min(1, len(name)):], appendText(nil, domain))
}

// readName reads a name, perhaps one of another node.
func readName(name []byte) (k TopKey, ok bool) {
	if len(name) == 0 || name[0] != nameWhole && name[0] != nameCut {
		return k, false
	}
	k.Cut = name[0] == nameCut
	var texts []string
	for rest := name[1:]; len(rest) > 0; {
		if len(rest) < 2 || len(rest)-2 < int(binary.BigEndian.Uint16(rest)) {
			return k, false
		}
		n := 2 + int(binary.BigEndian.Uint16(rest))
		// What was cut may end within a character.
		texts, rest = append(texts, strings.ToValidUTF8(string(rest[2:n]), "…")), rest[n:]
	}
	if len(texts) < 2 || len(texts)%2 != 0 {
		return k, false
	}
	k.Domain, k.Rule = texts[0], texts[1]
	for i := 2; i < len(texts); i += 2 {
		k.Descriptor = append(k.Descriptor, rules.Entry{Key: texts[i], Value: texts[i+1]})
	}
	return k, true
}
