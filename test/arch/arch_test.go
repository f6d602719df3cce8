package arch

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestSluice(t *testing.T) {
	tree, err := Load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"bucket", "ring", "rules", "cluster", "cluster/gossip", "limiter", "client/prom", "cmd/sluice"} {
		if !slices.ContainsFunc(tree.Packages, func(p *Package) bool { return p.Dir == want }) {
			t.Errorf("package %s is not in the tree: is this the root?", want)
		}
	}
	for _, b := range Check(tree) {
		t.Error(b)
	}
}

// TestProduct: no package of the product is there for tests alone; those are in test/.
func TestProduct(t *testing.T) {
	tree, err := Load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	const (
		outside = "test examples cmd"                         // the proof, and programs
		public  = "client limiter/local"                      // which programs import
		leaves  = "internal/leaf/leaktest internal/leaf/race" // the SDK's tests cannot require the root, which has test/
	)
	imported := make(map[string]bool)
	for _, p := range tree.Packages {
		for _, i := range p.Imports {
			if dir, ok := i.Own(); ok && !within(p.Dir, "test") {
				imported[dir] = true
			}
		}
	}
	for _, p := range tree.Packages {
		if !imported[p.Dir] && !withinAny(p.Dir, outside+" "+public+" "+leaves) {
			t.Errorf("%s: only tests import it; move it to test/", p.Dir)
		}
	}
}

// TestBroken breaks each rule once in a tree that is otherwise right.
func TestBroken(t *testing.T) {
	const own = Module + "/"
	sound := map[string]string{
		".gitignore":                 "/bin/\n*.out\n# a comment\n",
		"go.mod":                     "module " + Module,
		"go.work":                    "go 1.26.0\n\nuse (\n\t.\n\t./client\n)\n",
		"README.md":                  "",
		"bin/util/util.go":           "package util",
		"cpu.out":                    "",
		"bucket/table.go":            "package bucket; import \"time\"; var d time.Duration",
		"bucket/table_test.go":       "package bucket_test; import (\"os\"; \"context\"; \"time\"; \"pgregory.net/rapid\"); func f() { go f(); time.Now() }",
		"ring/ring.go":               `package ring; import ("net/netip"; "github.com/buraksezer/consistent")`,
		"rules/rules.go":             `package rules; import "` + own + `bucket"`,
		"cluster/node.go":            `package cluster; import ("context"; "` + own + `internal/check")`,
		"cluster/gossip/gossip.go":   `package gossip; import "github.com/hashicorp/memberlist"`,
		"internal/check/check.go":    `package check; import ("context"; "` + own + `bucket")`,
		"limiter/limiter.go":         `package limiter; import ("` + own + `internal/check"; "github.com/hashicorp/golang-lru/v2/simplelru")`,
		"transport/httpapi/api.go":   `package httpapi; import ("` + own + `limiter"; "` + own + `proto/sluice/v1")`,
		"transport/grpcapi/api.go":   `package grpcapi; import "google.golang.org/grpc"`,
		"transport/peer/server.go":   "package peer",
		"proto/sluice/v1/a.pb.go":    "package sluicev1",
		"client/go.mod":              "module " + own + "client",
		"client/client.go":           `package client; import "` + own + `proto/sluice/v1"`,
		"cmd/sluice/main.go":         `package main; import ("` + own + `cluster"; "` + own + `transport/httpapi"); func main() { go main() }`,
		"test/e2e/e2e_test.go":       `package e2e; import "` + own + `proto/sluice/v1"`,
		"bench/go.mod":               "module bench",
		"bench/bench.go":             `package bench; import "example.com/other"`,
		"bucket/testdata/x/x.go":     "this is not Go",
		"internal/_old/common/go.go": "package common",
	}
	for _, c := range []struct {
		name, file, src string
		// want are parts of the lines reported, one each, in order.
		want []string
	}{
		{"nothing", "docs/internals/design.md", "", nil},
		{"bucket reads the clock", "bucket/now.go", "package bucket\nimport \"time\"\nvar x = time.Now()", []string{"bucket/now.go:3: bucket is pure and uses time.Now"}},
		{"under another name", "bucket/now.go", "package bucket\nimport tm \"time\"\nvar x = tm.NewTimer(1)", []string{"uses time.NewTimer"}},
		{"ring opens files", "ring/os.go", "package ring\nimport \"os\"", []string{"ring/os.go:2: ring is pure and imports os"}},
		{"rules dial", "rules/http.go", "package rules\nimport \"net/http\"", []string{"imports net/http"}},
		{"bucket logs", "bucket/log.go", "package bucket\nimport \"log/slog\"", []string{"imports log/slog"}},
		{"below bucket too", "bucket/exact/log.go", "package exact\nimport \"context\"", []string{"bucket/exact is pure and imports context"}},
		{"on another system", "ring/ring_windows.go", "package ring\nimport \"syscall\"", []string{"imports syscall"}},
		{"goroutine", "rules/go.go", "package rules\nfunc f() { go f() }", []string{"rules/go.go:2: rules is pure and starts a goroutine"}},
		{"goroutine of a group", "rules/go.go", "package rules\nimport \"sync\"\nfunc f(g *sync.WaitGroup) { g.Go(nil) }", []string{"starts a goroutine: call of Go"}},
		{"purity by way of another", "bucket/check.go", `package bucket; import "` + own + `internal/check"`, []string{"internal/check, which is not pure itself"}},
		{"cluster to transport", "cluster/t.go", `package cluster; import "` + own + `transport/peer"`, []string{"cluster reaches transport by way of transport/peer"}},
		{"tests of cluster too", "cluster/t_test.go", `package cluster; import "` + own + `limiter"`, []string{"cluster reaches limiter"}},
		{"transport to cluster, at a distance", "internal/check/c.go", `package check; import "` + own + `cluster/gossip"`, []string{
			"transport/httpapi reaches cluster by way of limiter, internal/check, cluster/gossip",
			"limiter reaches cluster by way of internal/check, cluster/gossip",
		}},
		{"API to API", "transport/httpapi/g.go", `package httpapi; import "` + own + `transport/grpcapi"`, []string{"transport/httpapi imports transport/grpcapi"}},
		{"wire types inside", "cluster/w.go", `package cluster; import "` + own + `proto/sluice/v1"`, []string{"cluster imports proto/sluice/v1"}},
		{"linearizability for tests only", "internal/audit/run.go", `package audit; import "` + own + `test/linear"`, []string{"internal/audit imports test/linear"}},
		{"the client is light", "client/b.go", `package client; import "` + own + `bucket"`, []string{"client imports bucket"}},
		{"a local limiter may", "limiter/local/b.go", `package local; import "` + own + `bucket"`, nil},
		{"a local limiter is no server", "limiter/local/l.go", `package local; import "` + own + `limiter"`, []string{"limiter/local imports limiter"}},
		{"nor a client", "limiter/local/c.go", `package local; import "` + own + `client"`, []string{"limiter/local imports client"}},
		{"gRPC under a local limiter", "client/limit/g.go", `package limit; import "google.golang.org/grpc"`, []string{"client/limit reaches google.golang.org by way of google.golang.org/grpc"}},
		{"memberlist elsewhere", "cluster/m.go", `package cluster; import "github.com/hashicorp/memberlist"`, []string{"cluster imports github.com/hashicorp/memberlist"}},
		{"consistent in tests elsewhere", "cluster/m_test.go", `package cluster; import "github.com/buraksezer/consistent"`, []string{"cluster imports github.com/buraksezer/consistent"}},
		{"LRU in an API", "transport/httpapi/l.go", `package httpapi; import "github.com/hashicorp/golang-lru/v2"`, []string{"transport/httpapi imports github.com/hashicorp/golang-lru/v2"}},
		{"test library outside tests", "cluster/r.go", `package cluster; import "pgregory.net/rapid"`, []string{"cluster imports pgregory.net/rapid"}},
		{"library without a home", "cluster/x.go", `package cluster; import "example.com/x"`, []string{"cluster imports example.com/x, which test/arch does not know"}},
		{"vague package", "internal/check/x/x.go", "package helpers", []string{"package helpers"}},
		{"vague folder", "internal/common/x/x.go", "package x", []string{"folder common"}},
		{"vague file", "bucket/util_test.go", "package bucket", []string{"file util_test.go"}},
		{"another name's comment", "ring/d.go", "package ring\n// liveText is x.\nfunc aliveText() {}", []string{"ring/d.go:2: the comment of aliveText begins with liveText"}},
		{"a comment about names", "ring/d.go", "package ring\n// TLS is x.\ntype b int", nil},
		{"module apart", "rules/other/go.mod", "module " + own + "rules/other", []string{"module rules/other is not in go.work"}},
		{"new room", "stuff/x.go", "package stuff", []string{"stuff/ is not a place"}},
		{"new file at the root", "notes.txt", "", []string{"notes.txt is not a place"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys := fstest.MapFS{c.file: {Data: []byte(c.src)}}
			for name, src := range maps.All(sound) {
				fsys[name] = &fstest.MapFile{Data: []byte(src)}
			}
			tree, err := Load(fsys)
			if err != nil {
				t.Fatal(err)
			}
			broken := Check(tree)
			if len(broken) != len(c.want) {
				t.Fatalf("%d rules broken, want %d: %v", len(broken), len(c.want), broken)
			}
			for i, b := range broken {
				if !strings.Contains(b.String(), c.want[i]) {
					t.Errorf("%v\nwant one about: %s", b, c.want[i])
				}
				if b.Why == "" {
					t.Errorf("%v gives no reason", b)
				}
			}
		})
	}
}

func TestSourceThatDoesNotParse(t *testing.T) {
	_, err := Load(fstest.MapFS{
		".gitignore": {},
		"go.work":    {},
		"ring/x.go":  {Data: []byte("package ring\nfunc {")},
	})
	if err == nil || !strings.Contains(err.Error(), "ring/x.go:2") {
		t.Errorf("error %v, want one that names ring/x.go:2", err)
	}
}
