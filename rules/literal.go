package rules

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/sluicecluster/sluice/internal/yamldoc"
)

// regular matches what only regular expressions have. A plain .* does not count: in 10.* and api.*
// the star is the wildcard.
var regular = regexp.MustCompile(`^\^|^\.[*+]|/\.[*+]|\\[dws][+*{]|\\\.|\[\^?\w-\w[^\[\]]*\]|\([^()]*\|[^()]*\)|\)[*+?]`)

// warnOfLiteral warns of a value or a pattern that its author means as an expression. All but * is
// compared as text.
func (p *parser) warnOfLiteral(f yamldoc.Field, key, value string) {
	network, err := netip.ParsePrefix(value)
	first, last, ranged := strings.Cut(value, "-")
	switch {
	case err == nil && key == "masked_remote_address": // as Envoy's action of that name sends it
	case err == nil && network.Addr().Is4() && network.Bits()%8 == 0 && network.Bits() > 0 && network.Bits() < 32:
		octets := strings.Split(network.Addr().String(), ".")[:network.Bits()/8]
		p.warn(f.Line, f.Path, "a network is compared as text and matches no address; write %s.*", strings.Join(octets, "."))
	case err == nil:
		p.warn(f.Line, f.Path, "a network is compared as text and matches no address; %s", groupedByCaller)
	case ranged && isAddress(first) && isAddress(last):
		p.warn(f.Line, f.Path, "a range is compared as text and matches no address; %s", groupedByCaller)
	case regular.MatchString(value):
		p.warn(f.Line, f.Path, "a regular expression is compared as text, all but *, which stands for any characters; write a pattern such as /api/*")
	}
}

const groupedByCaller = "name the addresses one by one, or have the caller send the name of their group"

func isAddress(text string) bool {
	_, ok := Address(strings.TrimSpace(text))
	return ok
}

var manifestKeys = regexp.MustCompile(`(?m)^(apiVersion|kind):[ \t]*(\S*)`)

// manifest returns an error about the data of a Kubernetes manifest, nil if it is none.
func manifest(f File) error {
	found := manifestKeys.FindAllSubmatchIndex(f.Data, 2)
	if len(found) < 2 || bytes.Equal(f.Data[found[0][2]:found[0][3]], f.Data[found[1][2]:found[1][3]]) {
		return nil
	}
	kind := found[0]
	if f.Data[kind[2]] == 'a' {
		kind = found[1]
	}
	return &Error{File: f.Name, Line: 1 + bytes.Count(f.Data[:found[0][0]], []byte("\n")),
		Reason: fmt.Sprintf("a Kubernetes manifest (%s), not a rule file: give the text under data, as a file of its own", shorten(string(f.Data[kind[4]:kind[5]])))}
}
