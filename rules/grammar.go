package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// The mappings that a rule file is made of.
const (
	inFile       = "file"
	inDescriptor = "descriptor"
	inOtherwise  = "otherwise"
	inRateLimit  = "rate_limit"
	inLimits     = "limits"
	inReplaces   = "replaces"
	inResponse   = "response"
	inIPPrefix   = "ip_prefix"

	inAuthorize     = "authorize"
	inClientAddress = "client_address"
	inOriginal      = "original"
	inEntry         = "entry"

	inPool      = "pool"
	inPoolLimit = "pool_limit"
	inLoad      = "load"
	inElastic   = "elastic"

	inReservation = "reservation"
)

// limitKeys are the keys of every limit.
var limitKeys = []string{
	"algorithm", "count", "requests_per_unit", "period", "unit", "burst", "weight", "refill", "align", "timezone",
	"min_interval", "block_for", "soft", "count_denied", "sub_windows", "log_entries", "unlimited", "name",
}

// ruleKeys are the keys of every rule.
var ruleKeys = []string{
	"name", "limits", "shadow_mode", "quota_mode", "metadata", "consistency", "replication", "on_failure", "on_partition",
	"unknown_share", "on_lost_state", "response", "cache_denials", "elastic", "reservation", "scope", "home",
}

// grammar has every key by its mapping. The reader rejects all others; a test compares docs/use/rules.md and the schema.
var grammar = map[string][]string{
	inFile: {"version", "domain", "descriptors", "otherwise", "unmatched", "authorize", "pools", "max_keys"},
	inDescriptor: append([]string{
		"key", "value", "rate_limit", "descriptors", "otherwise", "detailed_metric", "value_to_metric", "share_threshold", "ip_prefix", "redact",
	}, ruleKeys...),
	inOtherwise: ruleKeys,
	inRateLimit: append([]string{"replaces"}, limitKeys...),
	inLimits:    limitKeys,
	inReplaces:  {"name"},
	inResponse:  {"status", "headers", "body"},
	inIPPrefix:  {"v4", "v6"},

	inAuthorize:     {"trusted_proxies", "client_address", "original", "denied_status", "all_or_nothing", "descriptors"},
	inClientAddress: {"header", "v4", "v6"},
	inOriginal:      {"method", "uri", "host"},
	inEntry:         {"key", "from", "name", "value", "default", "patterns"},

	inPool: {"limit", "reserves", "load", "replication"},
	inPoolLimit: {
		"algorithm", "count", "requests_per_unit", "period", "unit", "burst", "refill", "align", "timezone", "sub_windows", "log_entries",
	},
	inLoad:    {"shrink_to", "expires", "unreported"},
	inElastic: {"pool", "priority", "priority_key"},

	inReservation: {"max_units", "max_open", "ttl", "max_ttl", "on_expiry", "estimate"},
}

// envoyKeys are the keys of envoyproxy/ratelimit, which accepts each in any mapping and ignores it where it has no meaning.
var envoyKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "name", "replaces",
	"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
}

// envoyMappings are the mappings that envoyproxy/ratelimit has too.
var envoyMappings = []string{inFile, inDescriptor, inRateLimit, inReplaces}

// instead has the keys to write for others that are not as near as yamldoc.Suggest wants.
var instead = map[string]string{"cost": "weight", "refunds": "cache_denials: false", "rate": "limits", "rate_limit": "limits"}

// belongs names the mappings that take key, for a message.
func belongs(key string) string {
	var in []string
	for _, p := range []string{inFile, inDescriptor, inRateLimit, inLimits, inReplaces, inResponse, inIPPrefix, inAuthorize, inPool, inLoad, inElastic, inReservation} {
		if slices.Contains(grammar[p], key) {
			switch p {
			case inFile:
				p = "the file's top level"
			case inDescriptor:
				p = "a descriptor"
			}
			in = append(in, p)
		}
	}
	return strings.Join(in, " or ")
}

// suggest ends an error about an unknown key of the mapping with what may be meant.
func suggest(mapping, name string) string {
	other := instead[name]
	if key, _, _ := strings.Cut(other, ":"); slices.Contains(grammar[mapping], key) {
		return "; did you mean " + other + "?"
	}
	return yamldoc.Suggest(name, grammar[mapping])
}

// knows reports whether the grammar has f in the mapping. Other keys are errors, except those that envoyproxy/ratelimit
// loads and ignores: these are warnings.
func (p *parser) knows(f yamldoc.Field, path, mapping string) bool {
	if slices.Contains(grammar[mapping], f.Name) {
		return true
	}
	where := belongs(f.Name)
	switch {
	case where == "":
		p.ErrorfAt(f.Line, path, "unknown key %s%s", yamldoc.Quote(f.Name), suggest(mapping, f.Name))
	case !slices.Contains(envoyMappings, mapping) || !slices.Contains(envoyKeys, f.Name):
		p.ErrorfAt(f.Line, path, "the key %s belongs in %s, not here%s", f.Name, where, suggest(mapping, f.Name))
	default:
		p.warn(f.Line, path, "the key %s has no effect here; it belongs in %s", f.Name, where)
		p.onlyKnown(f.Value, path, 0)
	}
	return false
}

// onlyKnown rejects unknown keys below a value that is otherwise ignored, as envoyproxy/ratelimit does.
func (p *parser) onlyKnown(n *yaml.Node, path string, depth int) {
	if depth > MaxDepth {
		p.Errorf(n, path, "is nested deeper than %d levels", MaxDepth)
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		for _, f := range p.Fields(n, path) {
			if belongs(f.Name) == "" {
				p.ErrorfAt(f.Line, path, "unknown key %s", yamldoc.Quote(f.Name))
			}
			p.onlyKnown(f.Value, path, depth+1)
		}
	case yaml.SequenceNode:
		for _, item := range p.Items(n, path) {
			if item.Kind != yaml.MappingNode {
				p.Errorf(item, path, "the list holds something other than a mapping")
				continue
			}
			p.onlyKnown(item, path, depth+1)
		}
	}
}

var (
	algorithms = named(bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue, bucket.FixedWindow,
		bucket.SlidingLog, bucket.SlidingCounter, bucket.SlidingWindow, bucket.Concurrency)
	refills = named(bucket.RefillContinuous, bucket.RefillInterval)
	aligns  = named(bucket.AlignEpoch, bucket.AlignCalendar, bucket.AlignFirstHit)
)

// named lists values under their own names.
func named[T fmt.Stringer](values ...T) []yamldoc.Named[T] {
	list := make([]yamldoc.Named[T], len(values))
	for i, v := range values {
		list[i] = yamldoc.Named[T]{Name: v.String(), Value: v}
	}
	return list
}

// scopes are the values of scope: whether a limit is global.
var scopes = []yamldoc.Named[bool]{{Name: "region", Value: false}, {Name: "global", Value: true}}

var onFailures = []yamldoc.Named[OnFailure]{
	{Name: "share", Value: FailShare},
	{Name: "closed", Value: FailClosed},
	{Name: "open", Value: FailOpen},
}

var unmatcheds = []yamldoc.Named[Unmatched]{
	{Name: "allow", Value: UnmatchedAllow},
	{Name: "warn", Value: UnmatchedWarn},
	{Name: "deny", Value: UnmatchedDeny},
}

var unknownShares = []yamldoc.Named[UnknownShare]{
	{Name: "limit", Value: UnknownLimit},
	{Name: "none", Value: UnknownNone},
}

var onLostStates = []yamldoc.Named[OnLostState]{
	{Name: "deny", Value: LostDeny},
	{Name: "fresh", Value: LostFresh},
}

var onExpiries = []yamldoc.Named[OnExpiry]{
	{Name: "charge", Value: ExpiryCharge},
	{Name: "release", Value: ExpiryRelease},
}

var consistencies = []yamldoc.Named[Consistency]{
	{Name: "strict", Value: Strict},
	{Name: "eventual", Value: Eventual},
}

var replications = []yamldoc.Named[Replication]{
	{Name: "async", Value: ReplicateAsync},
	{Name: "sync", Value: ReplicateSync},
	{Name: "none", Value: ReplicateNone},
}

var sources = []yamldoc.Named[Source]{
	{Name: "value", Value: FromFile},
	{Name: "client_address", Value: FromClientAddress},
	{Name: "header", Value: FromHeader},
	{Name: "method", Value: FromMethod},
	{Name: "host", Value: FromHost},
	{Name: "path", Value: FromPath},
}

// nameOf returns the name of v in a list of the grammar.
func nameOf[T comparable](values []yamldoc.Named[T], v T) string {
	for _, e := range values {
		if e.Value == v {
			return e.Name
		}
	}
	return "unknown"
}

// Error is one error in a rule file.
type Error struct {
	File string
	// Line counts from 1. It is 0 if the error is about the file itself.
	Line int
	// Path leads to the value, for example "auth/auth_type=login.rate_limit.period". It may be empty.
	Path   string
	Reason string
}

func (e *Error) Error() string { return place(e.File, e.Line, e.Path) + e.Reason }

// place is the beginning of a message: "file:line: path: ".
func place(file string, line int, path string) string {
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	if path != "" {
		path += ": "
	}
	return file + ": " + path
}

// Errors returns the errors joined in an error of Parse.
func Errors(err error) []*Error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []*Error
		for _, e := range joined.Unwrap() {
			out = append(out, Errors(e)...)
		}
		return out
	}
	var one *Error
	if errors.As(err, &one) {
		return []*Error{one}
	}
	return nil
}

// ParseDuration reads a duration as rule files spell it: as time.ParseDuration does, and with d for 24 hours and w for 7
// days, for example "90s", "1h30m", "7d". Negative durations and those beyond 292 years are errors.
func ParseDuration(s string) (time.Duration, error) {
	bad := func(why string) (time.Duration, error) {
		return 0, fmt.Errorf("%.40q is not a duration such as 90s, 1h30m or 7d: %s", s, why)
	}
	if s == "0" {
		return 0, nil
	}
	if s == "" {
		return bad("it is empty")
	}
	var total time.Duration
	for rest := s; rest != ""; {
		unit := strings.TrimLeft(rest, "0123456789.")
		number := strings.TrimSuffix(rest, unit)
		if number == "" {
			return bad("a number is missing")
		}
		rest = strings.TrimLeftFunc(unit, func(c rune) bool { return !strings.ContainsRune("0123456789.", c) })
		part, err := parsePart(number, strings.TrimSuffix(unit, rest))
		if err != nil {
			return bad(err.Error())
		}
		if total > math.MaxInt64-part {
			return bad("it is too long")
		}
		total += part
	}
	return total, nil
}

// parsePart reads one number with its unit.
func parsePart(number, unit string) (time.Duration, error) {
	times := time.Duration(1)
	switch unit {
	case "":
		return 0, errors.New("a unit is missing")
	case "d":
		unit, times = "h", 24
	case "w":
		unit, times = "h", 7*24
	}
	part, err := time.ParseDuration(number + unit)
	if err != nil {
		return 0, errors.New("its units are ns, us, ms, s, m, h, d and w")
	}
	if part > math.MaxInt64/times {
		return 0, errors.New("it is too long")
	}
	return part * times, nil
}

// unit is a value of the key unit. Aligned to the epoch a month is 30 days and a year 365; the calendar has real ones, and
// nothing below a minute.
type unit struct {
	name     string
	period   time.Duration
	calendar bucket.Unit
}

const day = 24 * time.Hour

var units = []unit{
	{"second", time.Second, 0},
	{"minute", time.Minute, bucket.Minute},
	{"hour", time.Hour, bucket.Hour},
	{"day", day, bucket.Day},
	{"week", 7 * day, bucket.Week},
	{"month", 30 * day, bucket.Month},
	{"year", 365 * day, bucket.Year},
}
