package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestComments: every exported name of the packages that others may import has a comment. buf's COMMENTS does it for proto.
func TestComments(t *testing.T) {
	root := os.DirFS("../..")
	seen := 0
	for _, dir := range []string{"client", "rules", "bucket", "ring", "limiter", "cluster", "transport"} {
		err := fs.WalkDir(root, dir, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "internal" || d.Name() == "testdata"):
				return fs.SkipDir
			case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			src, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			missing, names := uncommented(t, name, src)
			seen += names
			for _, m := range missing {
				t.Errorf("%s has no comment", m)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 300 {
		t.Errorf("only %d exported names", seen)
	}
}

// TestUncommented: each kind of name without a comment is found.
func TestUncommented(t *testing.T) {
	const src = "package p\n// F is x.\nfunc F() {}\nfunc G() {}\ntype T struct{}\nfunc (T) M() {}\nfunc (t) N() {}\ntype t int\n" +
		"// The constants.\nconst (\nA = 1\nB = 2\n)\nconst C = 3\nvar (\n// D is x.\nD int\nE int\n)\n"
	missing, names := uncommented(t, "p.go", []byte(src))
	if want := "p.go:4: G p.go:5: T p.go:6: M p.go:14: C p.go:18: E"; strings.Join(missing, " ") != want || names != 9 {
		t.Errorf("%d names, %q; want %q", names, missing, want)
	}
}

// uncommented returns the exported names of a file without a comment, and how many exported names there are. A comment of a group
// is one of its first names, and of the names that follow one with a comment.
func uncommented(t *testing.T, name string, src []byte) (missing []string, names int) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	note := func(id *ast.Ident, commented bool) {
		if id.IsExported() && !slices.Contains(known, id.Name) {
			if names++; !commented {
				missing = append(missing, files.Position(id.Pos()).String()[:strings.LastIndex(files.Position(id.Pos()).String(), ":")]+": "+id.Name)
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type)) {
				note(d.Name, d.Doc != nil)
			}
		case *ast.GenDecl:
			before := d.Doc != nil
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					note(s.Name, s.Doc != nil || s.Comment != nil || d.Doc != nil)
				case *ast.ValueSpec:
					before = s.Doc != nil || s.Comment != nil || before && d.Tok == token.CONST || d.Doc != nil
					for _, id := range s.Names {
						note(id, before)
					}
				}
			}
		}
	}
	return missing, names
}

// known are methods of interfaces of the standard library that need no words.
var known = []string{"String", "Error", "Unwrap", "MarshalText", "UnmarshalText"}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
