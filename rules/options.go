package rules

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/internal/yamldoc"
)

// ownOptions are sluice's keys that say how a rule is enforced.
var ownOptions = []string{"consistency", "replication", "on_failure", "on_partition", "unknown_share", "on_lost_state", "response", "refunds", "elastic"}

// readOptions reads what a descriptor says about its rule beside the limits.
func (p *parser) readOptions(d *descriptor) {
	r := d.rule
	r.Shadow = p.flag(d, "shadow_mode")
	r.Quota = p.flag(d, "quota_mode")
	r.DetailedMetric = p.flag(d, "detailed_metric")
	if f, ok := d.fields["metadata"]; ok {
		r.Metadata = p.Map(f.Value, d.path+".metadata")
	}
	for _, name := range ownOptions {
		f, ok := d.fields[name]
		if !ok {
			continue
		}
		path := d.path + "." + name
		if len(d.limits) == 0 {
			p.FaultAt(f.Line, path, "has no effect without rate_limit or limits beside it")
		}
		switch name {
		case "consistency":
			r.Consistency, _ = yamldoc.Enum(p.Reader, f.Value, path, consistencies)
		case "replication":
			r.Replication, _ = yamldoc.Enum(p.Reader, f.Value, path, replications)
		case "on_failure":
			r.OnFailure, _ = yamldoc.Enum(p.Reader, f.Value, path, onFailures)
		case "on_partition":
			r.OnPartition, _ = yamldoc.Enum(p.Reader, f.Value, path, onFailures)
		case "unknown_share":
			r.UnknownShare, _ = yamldoc.Enum(p.Reader, f.Value, path, unknownShares)
		case "on_lost_state":
			r.OnLostState, _ = yamldoc.Enum(p.Reader, f.Value, path, onLostStates)
		case "refunds":
			r.Refunds = p.flag(d, name)
		case "elastic":
			p.readElastic(d, f, path)
		case "response":
			r.Response = p.readResponse(f.Value, path)
		}
	}
}

// flag reads a key of the descriptor that is true or false.
func (p *parser) flag(d *descriptor, name string) bool {
	f, ok := d.fields[name]
	if !ok {
		return false
	}
	v, _ := p.Bool(f.Value, d.path+"."+name)
	return v
}

// maxResponseBody bounds what is sent to every client that is denied.
const maxResponseBody = 64 << 10

func (p *parser) readResponse(n *yaml.Node, path string) *Response {
	res := &Response{}
	for _, f := range p.fields(n, path, inResponse) {
		at := path + "." + f.Name
		switch f.Name {
		case "status":
			status, _ := p.Int(f.Value, at, 400, 599)
			res.Status = int(status)
		case "headers":
			for _, h := range p.Fields(f.Value, at) {
				p.readHeader(res, h, at)
			}
		case "body":
			res.Body, _ = p.String(f.Value, at)
			if len(res.Body) > maxResponseBody {
				p.FaultAt(f.Line, at, "has %d bytes; at most %d are sent", len(res.Body), maxResponseBody)
			}
		}
	}
	return res
}

// ownHeaders are set by the HTTP server for every response.
var ownHeaders = []string{"connection", "content-length", "date", "keep-alive", "trailer", "transfer-encoding", "upgrade"}

func (p *parser) readHeader(res *Response, f yamldoc.Field, path string) {
	path += "." + f.Name
	value, ok := p.String(f.Value, path)
	switch {
	case !isToken(f.Name):
		p.FaultAt(f.Line, path, "%s is not the name of an HTTP header", yamldoc.Quote(f.Name))
	case slices.Contains(ownHeaders, strings.ToLower(f.Name)):
		p.FaultAt(f.Line, path, "the server sets this header itself")
	case slices.ContainsFunc(res.Headers, func(h Header) bool { return strings.EqualFold(h.Name, f.Name) }):
		p.FaultAt(f.Line, path, "the header comes twice")
	case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
		p.FaultAt(f.Line, path, "a header's value may not hold line breaks or control characters")
	case ok:
		res.Headers = append(res.Headers, Header{Name: f.Name, Value: value})
	}
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c))
	})
}
