package httplimit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocs: the page about middleware names every option, key and constructor of the three packages.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/use/middleware.md")
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for _, dir := range []string{".", "../grpclimit", "../netlimit"} {
		for _, name := range exported(t, dir) {
			if all++; !strings.Contains(string(page), name) {
				t.Errorf("docs/use/middleware.md does not name %s of %s", name, dir)
			}
		}
	}
	if all < 60 {
		t.Errorf("only %d names", all)
	}
}

// exported returns the fields of Config, and the functions, which have a "(" if they return a Key.
func exported(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok && n.Name.Name == "Config" {
					for _, f := range s.Fields.List {
						for _, id := range f.Names {
							names = append(names, "`"+id.Name+"`")
						}
					}
				}
			case *ast.FuncDecl:
				if n.Recv != nil || !n.Name.IsExported() {
					return false
				}
				if id, ok := n.Type.Results.List[0].Type.(*ast.Ident); ok && id.Name == "Key" {
					names = append(names, n.Name.Name+"(")
				} else {
					names = append(names, n.Name.Name)
				}
			}
			return true
		})
	}
	return names
}
