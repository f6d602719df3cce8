package access

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/internal/yamldoc"
	"github.com/sluicecluster/sluice/rules"
)

// Error is one error in an ACL file.
type Error struct {
	File string
	// Line counts from 1.
	Line int
	// Path leads to the value, for example "callers[2].grants[0].verbs". It may be empty.
	Path   string
	Reason string
}

func (e *Error) Error() string {
	at := fmt.Sprintf("%s:%d: ", e.File, e.Line)
	if e.Path != "" {
		at += e.Path + ": "
	}
	return at + e.Reason
}

// secrets matches tokens and pieces of them, which errors must not repeat.
var secrets = regexp.MustCompile(tokenPrefix + `[A-Za-z0-9_-]*`)

// Parse reads an ACL; file is its name in errors. The error joins all *Error. None repeats a token that was put into the file
// by mistake.
func Parse(file string, data []byte) (*Policy, error) {
	root, r := yamldoc.Open(data)
	p := &parser{
		Reader: r,
		policy: &Policy{tokens: make(map[Digest]*Caller), names: make(map[certName]*Caller), maxKeys: make(map[string]int64)},
		lines:  make(map[any]int),
	}
	if root != nil {
		p.readFile(root)
	}
	faults := r.Errors()
	if len(faults) == 0 {
		p.policy.quick.open(len(p.policy.tokens))
		return p.policy, nil
	}
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = &Error{File: file, Line: f.Line, Path: hide(f.Path), Reason: hide(f.Reason)}
	}
	return nil, errors.Join(errs...)
}

func hide(s string) string { return secrets.ReplaceAllString(s, tokenPrefix+"…") }

type parser struct {
	*yamldoc.Reader
	policy *Policy
	// lines has the line of each name, digest and name of a certificate.
	lines map[any]int
}

// fields returns the fields of a mapping, which may have those of known.
func (p *parser) fields(n *yaml.Node, path string, known ...string) map[string]yamldoc.Field {
	out := make(map[string]yamldoc.Field)
	for _, f := range p.Fields(n, path) {
		if !slices.Contains(known, f.Name) {
			p.ErrorfAt(f.Line, yamldoc.Join(path, f.Name), "unknown key %s; want one of %s", yamldoc.Quote(f.Name), strings.Join(known, ", "))
			continue
		}
		if !yamldoc.IsNull(f.Value) {
			out[f.Name] = f
		}
	}
	return out
}

func (p *parser) readFile(root *yaml.Node) {
	before := p.Count()
	fields := p.fields(root, "", "callers", "anonymous")
	var anonymous []grant
	if f, ok := fields["anonymous"]; ok {
		anonymous = p.readGrants(f.Value, "anonymous")
	}
	if len(anonymous) > 0 {
		p.policy.anonymous = newCaller("", anonymous)
	}
	if f, ok := fields["callers"]; ok {
		for i, n := range p.Items(f.Value, "callers") {
			p.readCaller(n, fmt.Sprintf("callers[%d]", i), anonymous)
		}
	}
	// A file that is being written may be seen empty.
	if p.Count() == before && p.policy.callers == 0 && p.policy.anonymous == nil {
		p.ErrorfAt(1, "", "names no caller and has no grants for anonymous ones, so all calls would be rejected")
	}
}

// readCaller reads one caller, which has the grants of anonymous ones too.
func (p *parser) readCaller(n *yaml.Node, path string, anonymous []grant) {
	fields := p.fields(n, path, "name", "tokens", "certificates", "grants", "max_keys")
	if n.Kind != yaml.MappingNode {
		if yamldoc.IsNull(n) {
			p.Errorf(n, path, "is empty; give it a name, tokens or certificates, and grants")
		}
		return
	}
	p.policy.callers++
	name := ""
	if f, ok := fields["name"]; !ok {
		p.Errorf(n, path+".name", "is missing: logs and messages call the caller by it")
	} else if name, ok = p.String(f.Value, path+".name"); ok {
		p.checkName(f, path+".name", name)
	}
	grants := slices.Clone(anonymous)
	if f, ok := fields["grants"]; !ok {
		p.Errorf(n, path+".grants", "is missing: say what the caller may do")
	} else {
		grants = append(grants, p.readGrants(f.Value, path+".grants")...)
	}
	caller := newCaller(name, grants)
	if f, ok := fields["max_keys"]; ok {
		if caller.MaxKeys, _ = p.Int(f.Value, path+".max_keys", 1, rules.MaxMaxKeys); caller.MaxKeys > 0 {
			p.policy.maxKeys[caller.Account()] = caller.MaxKeys
		}
	}
	if fields["tokens"].Value == nil && fields["certificates"].Value == nil {
		p.Errorf(n, path, "has neither tokens nor certificates, so no call could authenticate as this caller; anonymous is for unauthenticated calls")
	}
	p.readTokens(fields["tokens"], path+".tokens", caller)
	p.readCertificates(fields["certificates"], path+".certificates", caller)
}

// maxName is the longest name of a caller, in bytes.
const maxName = 64

func (p *parser) checkName(f yamldoc.Field, path, name string) {
	switch {
	case name == "" || len(name) > maxName || strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' }):
		p.Errorf(f.Value, path, "must be 1 to %d printable ASCII characters without spaces and quotes", maxName)
	case !p.once("caller "+name, f.Value.Line):
		p.Errorf(f.Value, path, "there is a caller of this name already, at line %d", p.lines["caller "+name])
	}
}

// once notes the line of what, and reports whether this is its first.
func (p *parser) once(what any, line int) bool {
	if _, ok := p.lines[what]; ok {
		return false
	}
	p.lines[what] = line
	return true
}

func (p *parser) readTokens(f yamldoc.Field, path string, caller *Caller) {
	if f.Value == nil {
		return
	}
	for i, n := range p.items(f, path, "list digests of tokens, or leave it out") {
		path := fmt.Sprintf("%s[%d]", path, i)
		// An error does not repeat it: it may be a token.
		d, ok := parseDigest(n.Value)
		switch {
		case n.Kind == yaml.ScalarNode && strings.HasPrefix(n.Value, tokenPrefix):
			p.Errorf(n, path, "is a token itself, and every reader of the file knows it now: make a new one with `sluice token`, and put the digest that it prints here")
		case n.Kind != yaml.ScalarNode || !ok:
			p.Errorf(n, path, "must be %s and 64 hexadecimal digits, as `sluice token` prints it", digestPrefix)
		case !p.once(d, n.Line):
			p.Errorf(n, path, "the same token stands at line %d already", p.lines[d])
		default:
			p.policy.tokens[d] = caller
		}
	}
}

func (p *parser) readCertificates(f yamldoc.Field, path string, caller *Caller) {
	if f.Value == nil {
		return
	}
	for i, n := range p.items(f, path, "list names, or leave it out") {
		path := fmt.Sprintf("%s[%d]", path, i)
		s, ok := p.String(n, path)
		if !ok {
			if yamldoc.IsNull(n) {
				p.Errorf(n, path, "is empty")
			}
			continue
		}
		kind, text, _ := strings.Cut(s, ":")
		name := certName{certKind(max(0, slices.Index(certKinds[:], kind))), text}
		switch {
		case !slices.Contains(certKinds[:], kind) || text == "":
			p.Errorf(n, path, "must be uri:, dns: or cn: and the name, not %s", yamldoc.Quote(s))
		case !p.once(name, n.Line):
			p.Errorf(n, path, "the same name stands at line %d already", p.lines[name])
		default:
			p.policy.names[name] = caller
		}
	}
}

// items returns the elements of a list that may not be empty.
func (p *parser) items(f yamldoc.Field, path, advice string) []*yaml.Node {
	before := p.Count()
	list := p.Items(f.Value, path)
	if len(list) == 0 && p.Count() == before {
		p.ErrorfAt(f.Line, path, "is empty; %s", advice)
	}
	return list
}

func (p *parser) readGrants(n *yaml.Node, path string) (out []grant) {
	list := p.items(yamldoc.Field{Value: n, Line: n.Line}, path, "give at least one grant")
	for i, n := range list {
		out = append(out, p.readGrant(n, fmt.Sprintf("%s[%d]", path, i))...)
	}
	return out
}

func (p *parser) readGrant(n *yaml.Node, path string) []grant {
	fields := p.fields(n, path, "domains", "verbs")
	if n.Kind != yaml.MappingNode && !yamldoc.IsNull(n) {
		return nil
	}
	for _, name := range []string{"domains", "verbs"} {
		if _, ok := fields[name]; !ok {
			p.Errorf(n, yamldoc.Join(path, name), "is missing: a grant has domains and verbs")
		}
	}
	var v verbs
	if f, ok := fields["verbs"]; ok {
		for i, n := range p.items(f, path+".verbs", "list at least one of "+verbs(1<<verbCount-1).String()) {
			if one, ok := yamldoc.Enum(p.Reader, n, fmt.Sprintf("%s.verbs[%d]", path, i), verbValues); ok {
				v |= 1 << one
			} else if yamldoc.IsNull(n) {
				p.Errorf(n, fmt.Sprintf("%s.verbs[%d]", path, i), "is empty")
			}
		}
	}
	var out []grant
	if f, ok := fields["domains"]; ok {
		for i, n := range p.items(f, path+".domains", `list names of domains; "*" is all`) {
			if g, ok := p.readDomain(n, fmt.Sprintf("%s.domains[%d]", path, i)); ok {
				if v.has(Admin) && !(g.prefix && g.domain == "") {
					p.Errorf(n, path+".verbs", `admin is about the whole cluster: grant it separately, in the domains ["*"]`)
				}
				g.verbs = v
				out = append(out, g)
			}
		}
	}
	return out
}

// readDomain reads the name of a domain, or a prefix of names and a star.
func (p *parser) readDomain(n *yaml.Node, path string) (g grant, ok bool) {
	s, ok := p.String(n, path)
	if !ok || s == "" {
		if ok || yamldoc.IsNull(n) {
			p.Errorf(n, path, `is empty; "*" is all domains`)
		}
		return g, false
	}
	g.domain, g.prefix = strings.CutSuffix(s, "*")
	switch {
	case strings.Contains(g.domain, "*"):
		p.Errorf(n, path, "%s has a star that is not its end; only what domains begin with can be given", yamldoc.Quote(s))
	case len(g.domain) > rules.MaxEntryBytes:
		p.Errorf(n, path, "has %d bytes, and a check cannot carry more than %d", len(g.domain), rules.MaxEntryBytes)
	default:
		return g, true
	}
	return g, false
}
