package arch

import (
	"path"
	"slices"
	"strings"
)

// A place in these tables is a folder of the project with those below it, except that "client/." is client alone. Lists of
// places are separated by spaces.

// pure are the packages whose functions return the same result for the same arguments, on every node and in every test.
var pure = []struct{ dir, why string }{
	{"bucket", "an algorithm that reads no clock can be tested at any instant, and replayed after a handoff"},
	{"ring", "equal views must give equal tables on every node, so nothing but the view may count"},
	{"rules", "the caller reads files and decides when to reload; parsing the same bytes always gives the same rules"},
	{"cluster/lease", "what is granted must add up at every instant of a test, whatever is lost, late or doubled"},
	{"cluster/share", "repeated faults and restarts must add up in the simulator as they do in a node"},
	{"cluster/eventual", "what is reported twice, late or to the next owner must add up at every instant of a test"},
	{"internal/leaf/guard", "pure packages ask it whether a rule is in force, which is a constant but in tests"},
	{"internal/message", "messages are values: their meaning depends on nothing else"},
	{"internal/yamldoc", "the same bytes are the same document on every node"},
	{"internal/leaf/descvalue", "every node and every client must shorten a value to the same text, or it gets several counters"},
	{"internal/facts", "status reports are values too, and messages carry them"},
	{"internal/member", "views are values that every goroutine reads without a lock"},
	{"internal/audit/model", "a verdict must depend on the log alone, so that it can be checked against the algorithms"},
}

// impure are the packages of the standard library, with those below them, that a pure package must not import.
var impure = []struct{ path, why string }{
	{"net", "does I/O"},
	{"os", "touches the machine"},
	{"io/ioutil", "touches the machine"},
	{"syscall", "touches the machine"},
	{"context", "belongs to code that can block"},
	{"log", "belongs to code that acts: return an error or a count"},
	{"math/rand", "randomness is a parameter"},
	{"crypto/rand", "randomness is a parameter"},
}

// harmless are exceptions that do no I/O: offheap hands out memory, as the Go runtime does.
var harmless = []string{"net/netip", "bucket/internal/offheap"}

// unrelated are pairs of places that never reach each other, directly or through other packages, not even in tests.
var unrelated = []struct{ a, b, why string }{
	{"cluster", "transport", "the node must run under another transport, and APIs before another decider; internal/node joins them"},
	{"cluster", "limiter", "as transport: they meet in internal/check"},
	{"client/limit", "google.golang.org", "programs and middleware that do not care who decides compile no gRPC"},
	{"limiter/local", "google.golang.org", "a limiter without a server needs none of its libraries"},
}

// apis are packages of which none imports another.
var apis = []string{
	"transport/grpcapi", "transport/httpapi", "transport/envoy", "transport/gubernator", "transport/forwardauth", "transport/console",
	"transport/peer",
}

// apiOf returns the element of apis that dir is within, or "".
func apiOf(dir string) string {
	for _, api := range apis {
		if within(dir, api) {
			return api
		}
	}
	return ""
}

// only says which other packages of this module a package may import, where these are few. The first entry of a package counts.
var only = []struct{ dir, uses, why string }{
	{"limiter/local", "bucket rules client/limit", "a limiter in the process decides as a node does, and has nothing else of one"},
	{"limiter", "bucket rules ring internal", "a check means the same whichever API it came in by, so no API, wire type or node may leak into it"},
	{"client/limit", "internal/leaf", "programs without a cluster, and middleware, do not compile gRPC"},
	{"client", "proto/sluice/v1 internal/leaf", "users of the SDK do not compile the server"},
}

// homes says which places may import a library, or a folder of this module that is not for every package, and why only
// these. Test files may do so in the places of test too. A library that is missing here may be used nowhere.
var homes = []struct{ path, homes, test, why string }{
	{"proto", "transport client internal/node cmd proto internal/audit internal/load/api test", "",
		"generated types stay at the edge: the wire can change without the decisions noticing. An audit is a client"},
	{"cmd", "cmd", "", "the binary is the last thing built: nothing may depend on how it is wired"},
	{"internal/snapshot", "cluster/. internal/node test", "",
		"files are for the process: the packages that decide get states as values"},
	{"internal/node", "cmd", "", "the packages that it joins must not depend on what they are joined to"},
	{"test/arch", "", "", "it judges the tree and is part of no program"},
	{"test/linear", "test", "internal/audit",
		"a search for an order may not terminate: only tests do it"},

	{"github.com/hashicorp/memberlist", "cluster/gossip test/memnet", "",
		"other packages only know the view, so the gossip library can be replaced"},
	{"github.com/hashicorp/go-msgpack/v2", "cluster/gossip", "",
		"memberlist's encoding: unauthenticated announcements are read before memberlist allocates memory for them"},
	{"github.com/fxamacker/cbor/v2", "transport/peer internal/snapshot", "",
		"the form of control messages and of snapshots; the messages themselves are plain structs"},
	{"github.com/buraksezer/consistent", "ring", "",
		"a ring table is copied out of it once; it can panic, and only ring knows when"},
	{"github.com/hashicorp/golang-lru/v2", "cluster limiter transport/peer client/.", "",
		"the bounded memories of rules and limits seen on the wire, of keys of other regions, and of owners and denials in the SDK"},
	{"google.golang.org/grpc", "transport client examples/go proto internal/node cmd internal/audit internal/inflow internal/load/api test", "internal/regions",
		"status codes and connections are chosen at the edge; an audit and a load are callers, beyond it"},
	{"google.golang.org/protobuf", "transport client proto cmd internal/audit internal/inflow test", "internal/node",
		"messages end at the edge; further in, requests are those of internal/check"},
	{"google.golang.org/genproto", "transport client cmd test", "internal/node", "error details are part of the wire"},
	{"github.com/envoyproxy/go-control-plane", "transport/envoy internal/load/api test", "internal/node",
		"Envoy's own types end at its API"},
	{"golang.org/x/time", "client/.", "",
		"the fallback of the SDK while no node responds; everything else is limited by bucket"},
	{"github.com/dchest/siphash", "limiter transport/access", "",
		"one place turns strings into counter keys, so that all APIs name the same counter; headers with tokens are remembered by it"},
	{"github.com/cespare/xxhash/v2", "ring cluster transport", "",
		"fast hashing where no attacker chooses the input: ring points, checksums"},
	{"github.com/HdrHistogram/hdrhistogram-go", "internal/load/.", "",
		"a load's latencies, to the last digit of the slowest, in a fixed amount of memory"},
	{"golang.org/x/sys", "cluster test/faultnet", "cmd/sluice",
		"the clock that runs while the machine sleeps, and tests' networks and terminals: the standard library reads and makes none of them"},
	{"golang.org/x/term", "cmd", "", "the size of a terminal, and its keys: packages print nothing"},
	{"github.com/charmbracelet/x/ansi", "cmd", "", "how wide text with colours is on a terminal, and where to break it"},
	{"golang.org/x/net", "test/rawh2", "", "tests speak HTTP/2 frame by frame, as no client that behaves does"},
	{"github.com/spf13/cobra", "cmd", "", "commands and flags belong to the binary; packages take a Config"},
	{"github.com/spf13/pflag", "cmd", "", "as cobra"},
	{"github.com/fsnotify/fsnotify", "internal/rulefiles", "",
		"one package watches rule files and hands their bytes to rules"},
	{"github.com/dustin/go-humanize", "internal/node", "", "sizes as people write them are a matter of settings"},
	{"go.opentelemetry.io", "client/otel internal/tracing internal/node", "limiter transport cluster",
		"users of the SDK without it do not compile it; in the daemon spans are made in one place, and sent by the node"},
	{"github.com/prometheus", "internal/node client/prom", "",
		"owners count in plain counters; the node maps them at scrape"},
	{"go.yaml.in/yaml/v3", "rules transport/access internal/yamldoc internal/migrate cmd", "transport/envoy transport/httpapi internal/node",
		"rule files, the ACL and the configuration file are YAML, nothing else is; tests read Envoy's, and the OpenAPI description"},
	{"github.com/santhosh-tekuri/jsonschema/v6", "", "rules transport/httpapi",
		"tests hold the schema for editors against the parser, and the OpenAPI description against the server"},
	{"github.com/anishathalye/porcupine", "test/linear", "",
		"tests search a key's log for an order in which one counter could have answered"},
	{"github.com/cockroachdb/datadriven", "", "test/transcripts",
		"commands and their output in one text file, which a flag writes anew"},
	{"pgregory.net/rapid", "test", ".", "property tests"},
	{"go.uber.org/goleak", "", ".", "tests that no goroutine outlives its owner"},
}

// vague are names that say nothing about the contents of a package, folder or file.
var vague = strings.Fields("util utils utility common commons helper helpers misc manager shared base lib core types")

// top are the files and folders that may stand at the root. Names that begin with a dot are free.
var top = strings.Fields(`bench/ bucket/ client/ cluster/ cmd/ deploy/ docs/ examples/ internal/ limiter/ proto/ ring/ rules/ test/ tools/ transport/
	CHANGELOG.md CONTRIBUTING.md Dockerfile LICENSE Makefile README.md SECURITY.md go.mod go.sum go.work go.work.sum`)

// apart are the places of modules that are not in go.work, because their libraries would move the versions of the product's.
const apart = "bench test/integration tools"

// within reports whether dir is place or below it.
func within(dir, place string) bool {
	if alone, ok := strings.CutSuffix(place, "/."); ok {
		return dir == alone
	}
	return place == "." || dir == place || strings.HasPrefix(dir, place+"/")
}

// withinAny is within for a list of places.
func withinAny(dir, places string) bool {
	for place := range strings.FieldsSeq(places) {
		if within(dir, place) {
			return true
		}
	}
	return false
}

// isVague judges a name without its extension and test suffix.
func isVague(name string) bool {
	name = strings.TrimSuffix(name, path.Ext(name))
	return slices.Contains(vague, strings.TrimSuffix(name, "_test"))
}
