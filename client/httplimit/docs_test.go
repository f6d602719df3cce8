package httplimit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestDocs: the page about middleware names every option and every key.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/middleware.md")
	if err != nil {
		t.Fatal(err)
	}
	names := keys(t)
	for f := range reflect.TypeFor[Config]().Fields() {
		names = append(names, "`"+f.Name+"`")
	}
	if len(names) < 20 {
		t.Fatalf("only %v", names)
	}
	for _, name := range names {
		if !strings.Contains(string(page), name) {
			t.Errorf("docs/middleware.md does not name %s", name)
		}
	}
}

// keys returns the beginnings of calls of the package's functions that return a Key.
func keys(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Type.Results == nil || !fn.Name.IsExported() {
			continue
		}
		if id, ok := fn.Type.Results.List[0].Type.(*ast.Ident); ok && id.Name == "Key" {
			names = append(names, fn.Name.Name+"(")
		}
	}
	return names
}
