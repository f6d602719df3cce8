package rules

import "github.com/sluice-project/sluice/bucket"

// Entry is one (key, value) of a descriptor.
type Entry struct{ Key, Value string }

// OnFailure says what answers a check when its holder cannot be reached in time.
type OnFailure uint8

const (
	// FailShare admits limit ÷ members on the node asked, counted apart.
	FailShare OnFailure = iota
	// FailClosed denies.
	FailClosed
	// FailOpen admits.
	FailOpen
)

// File is one rule file, read by the caller.
type File struct {
	Name string
	Data []byte
}

// Options change how files are read.
type Options struct {
	// MergeDomains lets several files describe one domain.
	MergeDomains bool
}

// Set is an immutable set of rules for any number of domains.
type Set struct{}

// Parse reads rule files. The error joins one *Error (file, line, reason) per fault.
func Parse(files []File, o Options) (*Set, error) { panic("seam") }

// Match returns the rule that applies to descriptor, nil if none does, and
// whether the domain has rules at all. It does not allocate.
func (s *Set) Match(domain string, descriptor []Entry) (rule *Rule, known bool) { panic("seam") }

// Rule is what one descriptor is held to.
type Rule struct {
	Domain string
	// Name is the rule's own name, else its path, for example "auth/auth_type=login".
	Name string
	// Limits is nil when the rule only names a level of the tree or is unlimited.
	Limits    *bucket.Limits
	Unlimited bool
	Shadow    bool
	Quota     bool
	OnFailure OnFailure
	Response  *Response
}

// Response is what an HTTP door answers when the rule denies.
type Response struct {
	// Status is 0 for the door's default, else 400 to 599.
	Status  int
	Headers []Header
	Body    string
}

// Header is one HTTP header.
type Header struct{ Name, Value string }

// AppendKey appends the bytes that name the counter of descriptor under r: the
// domain and the entries, each with its length, values normalised by the rule
// (wildcards that share one counter, address prefixes). r may be nil: plain entries.
func (r *Rule) AppendKey(dst []byte, domain string, descriptor []Entry) []byte { panic("seam") }
