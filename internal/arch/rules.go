package arch

import (
	"path"
	"slices"
	"strings"
)

// A place in these tables is a folder of the module and stands for the folders
// below it too, except that "client/." is client alone.

// pure are the packages that decide and do nothing else: the same arguments give
// the same result on every node and in every test.
var pure = []struct{ dir, why string }{
	{"bucket", "an algorithm that reads no clock can be tested at any instant, and replayed after a hand-off"},
	{"ring", "equal views must give equal tables on every node, so nothing but the view may count"},
	{"rules", "the caller reads files and decides when to reload; parsing the same bytes always gives the same rules"},
	{"cluster/lease", "what is granted must add up at every instant of a test, whatever is lost, late or doubled"},
	{"cluster/share", "repeated faults and restarts must add up in the simulator as they do in a node"},
	{"cluster/eventual", "what is told twice, late or to the next owner must add up at every instant of a test"},
	{"internal/guard", "pure packages ask it whether a rule is in force, which is a constant but in tests"},
	{"internal/message", "messages are values: what they mean may hang on nothing but themselves"},
	{"internal/yamldoc", "the same bytes are the same document, whoever reads them"},
	{"internal/shortvalue", "every node and every client must shorten a value to the same text, or it gets several counters"},
	{"internal/facts", "what nodes tell people is values too, and messages carry it"},
	{"internal/member", "views are values that every goroutine reads without a lock"},
	{"internal/audit/model", "a verdict must depend on the log alone, so that it can be checked against the algorithms"},
}

// impure are the imports that a pure package must do without.
var impure = []struct{ path, why string }{
	{"net", "does I/O"},
	{"net/...", "does I/O"},
	{"os", "touches the machine"},
	{"os/...", "touches the machine"},
	{"io/ioutil", "touches the machine"},
	{"syscall", "touches the machine"},
	{"context", "belongs to what can block"},
	{"log", "belongs to what acts: return an error or a count"},
	{"log/...", "belongs to what acts: return an error or a count"},
	{"math/rand", "randomness is a parameter"},
	{"math/rand/...", "randomness is a parameter"},
	{"crypto/rand", "randomness is a parameter"},
}

// harmless are imports that impure covers and that do no I/O all the same.
var harmless = []string{"net/netip"}

// unauthenticated clients never reach each other, directly or through other packages of the
// module, in tests neither.
var outsiders = []struct{ a, b, why string }{
	{"cluster", "transport", "the node must run under another transport, and APIs before another decider; internal/node joins them"},
	{"cluster", "limiter", "as transport: they meet in internal/check"},
}

// apart are packages of which none imports another.
var apart = []struct {
	dirs []string
	why  string
}{
	{
		[]string{"transport/grpcapi", "transport/httpapi", "transport/envoy", "transport/gubernator", "transport/forwardauth", "transport/console", "transport/peer"},
		"each API stands alone and calls the node in-process: what they share belongs in limiter, and of the wire in transport",
	},
}

// ownHomes says who may import packages of this module that are not for everybody.
// Entries of tests are added for _test.go files.
var ownHomes = []struct {
	dir         string
	homes, test []string
	why         string
}{
	{
		"proto", []string{"transport", "client", "internal/node", "cmd", "proto", "internal/audit", "internal/load/api"}, []string{"internal/e2e", "internal/faultmatrix"},
		"generated types stay at the edge: the wire can change without the decisions noticing. An audit asks as any caller does",
	},
	{
		"cmd", []string{"cmd"}, nil,
		"the binary is the last thing built: nothing may depend on how it is wired",
	},
	{
		"internal/snapshot", []string{"cluster/.", "internal/node"}, []string{"internal/e2e"},
		"files are for whoever runs the node: what decides gets states as values, wherever they were kept",
	},
	{
		"internal/node", []string{"cmd"}, nil,
		"what it joins must do without knowing what it is joined to",
	},
	{
		"internal/arch", nil, nil,
		"it judges the tree and is part of no program",
	},
	{
		"internal/audit/linear", nil, []string{"internal/audit", "internal/e2e"},
		"searching for an order can take for ever: tests do it, the binary does not",
	},
}

// only says what a package may use of this module, where that is little.
var only = []struct {
	dir  string
	uses []string
	why  string
}{
	{"limiter", []string{"bucket", "rules", "ring", "internal"}, "a check means the same whichever API it came in by, so no API, wire type or node may leak into it"},
	{"client", []string{"proto/sluice/v1", "client", "internal/shortvalue", "internal/pause"}, "whoever calls sluice does not compile its server"},
}

// modules says where each library is used, and why only there. A library that is
// not in the list has no home yet: give it one here, with the reason.
var modules = []struct {
	path        string
	homes, test []string
	why         string
}{
	{
		"github.com/hashicorp/memberlist", []string{"cluster/gossip"}, nil,
		"membership is a view to everybody else, so the gossip library can be replaced",
	},
	{
		"github.com/hashicorp/go-msgpack/v2", []string{"cluster/gossip"}, nil,
		"memberlist's encoding: what an unauthenticated client announces is read before memberlist makes room for it",
	},
	{
		"github.com/fxamacker/cbor/v2", []string{"transport/peer", "internal/snapshot"}, nil,
		"the form of control messages and of snapshots; the messages themselves are plain structs",
	},
	{
		"github.com/buraksezer/consistent", []string{"ring"}, nil,
		"a ring table is copied out of it once; it can panic, and only ring knows when",
	},
	{
		"github.com/hashicorp/golang-lru/v2", []string{"bucket", "limiter", "transport/peer", "client/."}, nil,
		"the table of counters, and the bounded memories of rules and limits seen on the wire, and of owners and denials in the SDK",
	},
	{
		"google.golang.org/grpc", []string{"transport", "client", "proto", "internal/node", "cmd", "internal/audit", "internal/inflow", "internal/load/api"}, []string{"internal/e2e", "internal/faultmatrix"},
		"status codes and connections are chosen at the edge; an audit and a load are callers, beyond it",
	},
	{
		"google.golang.org/protobuf", []string{"transport", "client", "proto", "cmd", "internal/audit", "internal/inflow"}, []string{"internal/node", "internal/e2e"},
		"messages are the edge's words; inside, internal/check is",
	},
	{
		"google.golang.org/genproto", []string{"transport", "client", "cmd"}, []string{"internal/node", "internal/e2e"},
		"error details are part of the wire",
	},
	{
		"github.com/envoyproxy/go-control-plane", []string{"transport/envoy", "internal/load/api"}, []string{"internal/node", "internal/e2e"},
		"Envoy's own types: its words end at its API",
	},
	{
		"golang.org/x/time", []string{"client/."}, nil,
		"what stands in for the cluster while nobody answers; all else is limited by bucket",
	},
	{
		"github.com/dchest/siphash", []string{"limiter", "transport/access"}, nil,
		"one place turns strings into counter keys, so that all APIs name the same counter; headers with tokens are remembered by it",
	},
	{
		"github.com/cespare/xxhash/v2", []string{"ring", "cluster", "transport"}, nil,
		"fast hashing of what nobody chooses to collide: ring points, checksums",
	},
	{
		"github.com/HdrHistogram/hdrhistogram-go", []string{"internal/load/."}, nil,
		"a load's latencies, to the last digit of the slowest, in a fixed amount of memory",
	},
	{
		"golang.org/x/sys", []string{"cluster", "internal/faultnet"}, nil,
		"the clock that runs while the machine sleeps, and tests' networks: the standard library reads and makes neither",
	},
	{
		"golang.org/x/net", []string{"internal/rawh2"}, nil,
		"tests speak HTTP/2 frame by frame, as no client that behaves does",
	},
	{
		"github.com/spf13/cobra", []string{"cmd"}, nil,
		"commands and flags belong to the binary; packages take a Config",
	},
	{
		"github.com/spf13/pflag", []string{"cmd"}, nil,
		"as cobra",
	},
	{
		"github.com/fsnotify/fsnotify", []string{"internal/rulefiles"}, nil,
		"one package watches rule files and hands their bytes to rules",
	},
	{
		"github.com/dustin/go-humanize", []string{"internal/node"}, nil,
		"sizes as people write them are a matter of settings",
	},
	{
		"go.opentelemetry.io", []string{"client/clientotel", "internal/tracing", "internal/node"}, []string{"limiter", "transport", "cluster"},
		"whoever calls sluice without it does not compile it; in the daemon spans are made in one place, and sent by the node",
	},
	{
		"github.com/prometheus", []string{"internal/node", "client/clientprom"}, nil,
		"owners count in plain counters; the node maps them at scrape",
	},
	{
		"go.yaml.in/yaml/v3", []string{"rules", "transport/access", "internal/yamldoc", "cmd"}, []string{"transport/envoy", "internal/node"},
		"rule files, the callers file and the configuration file are YAML, nothing else is; a test reads Envoy's",
	},
	{
		"github.com/santhosh-tekuri/jsonschema/v6", nil, []string{"rules"},
		"tests hold the schema for editors against the parser",
	},
	{
		"github.com/anishathalye/porcupine", []string{"internal/audit/linear"}, nil,
		"tests search a key's log for an order in which one counter could have answered",
	},
	{
		"github.com/cockroachdb/datadriven", nil, []string{"cluster/transcripts"},
		"commands and their output in one text file, which a flag writes anew",
	},
	{
		"pgregory.net/rapid", nil, []string{"."},
		"property tests",
	},
	{
		"go.uber.org/goleak", nil, []string{"."},
		"tests that no goroutine outlives its owner",
	},
}

// vague are names that say nothing about what is inside, for packages, folders
// and files: a newcomer would have to open them all.
var vague = []string{
	"util", "utils", "utility", "common", "commons", "helper", "helpers", "misc", "manager", "shared", "base", "lib", "core", "types",
}

// top are the files and folders that may stand at the root. Names that begin
// with a dot are free.
var top = []string{
	"bench/", "bucket/", "client/", "cluster/", "cmd/", "deploy/", "docs/", "examples/", "internal/", "limiter/", "proto/", "ring/", "rules/", "transport/",
	"CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile", "README.md", "SECURITY.md", "go.mod", "go.sum",
}

// within reports whether dir is place or below it.
func within(dir, place string) bool {
	if alone, ok := strings.CutSuffix(place, "/."); ok {
		return dir == alone
	}
	return place == "." || dir == place || strings.HasPrefix(dir, place+"/")
}

func withinAny(dir string, places []string) bool {
	return slices.ContainsFunc(places, func(p string) bool { return within(dir, p) })
}

// covers reports whether an import path is the pattern, or below a pattern that
// ends in "/...".
func covers(pattern, imported string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(imported, below+"/")
	}
	return imported == pattern
}

// isVague judges a name without its extension and test suffix.
func isVague(name string) bool {
	name = strings.TrimSuffix(name, path.Ext(name))
	return slices.Contains(vague, strings.TrimSuffix(name, "_test"))
}
