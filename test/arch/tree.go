package arch

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Module is the import path of the root; the paths of the other modules in go.work begin with it.
const Module = "github.com/sluicecluster/sluice"

// Tree has every package of the modules in go.work, with the files for every operating system and build tag.
type Tree struct {
	// Packages are sorted by Dir.
	Packages []*Package
	// Apart are the folders of modules that are not in go.work. Their packages are not in Packages.
	Apart []string
	// Top are the names at the root of the tree without ignored ones; a folder's name ends in a slash.
	Top []string
}

// Package is one folder of Go files.
type Package struct {
	// Dir is the folder, relative to the root and with slashes.
	Dir string
	// Names are the names in the package clauses, without the _test of external tests, sorted.
	Names []string
	// Files are the names of its Go files, sorted.
	Files []string
	// TestImports are those of _test.go files.
	Imports, TestImports []Import
	// Clocks are the uses of the process's clock, Goroutines the places that start one, without those of tests.
	Clocks, Goroutines []Place
	// Docs are the comments of functions and types, tests among them.
	Docs []Doc
}

// Doc is the comment of a function or a type.
type Doc struct {
	// Pos is the comment's first line, First its first word, and Name what it is about.
	Pos, First, Name string
}

// Place is a line of a file.
type Place struct {
	// Pos is file:line, relative to the root.
	Pos string
	// What stands there, for example "time.Now".
	What string
}

// Import is one import declaration.
type Import struct {
	Pos, Path string
}

// Own returns the folder of an import of this project.
func (i Import) Own() (dir string, ok bool) { return strings.CutPrefix(i.Path, Module+"/") }

// target returns the folder of an import of the same module, else the path.
func (i Import) target() string {
	if dir, ok := i.Own(); ok {
		return dir
	}
	return i.Path
}

// Standard reports whether the import is of the standard library: the first element of its path has no dot.
func (i Import) Standard() bool {
	first, _, _ := strings.Cut(i.Path, "/")
	return !strings.Contains(first, ".")
}

// Load reads the tree below fsys, whose root holds go.work and a go.mod.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{}
	ignored, err := readIgnored(fsys)
	if err != nil {
		return nil, err
	}
	work, err := fs.ReadFile(fsys, "go.work")
	if err != nil {
		return nil, fmt.Errorf("read which modules there are: %w", err)
	}
	modules := strings.Fields(string(work))
	packages := make(map[string]*Package)
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == "." {
			return nil
		}
		if !strings.Contains(name, "/") {
			switch {
			case !ignored(name) && d.IsDir():
				t.Top = append(t.Top, name+"/")
			case !ignored(name):
				t.Top = append(t.Top, name)
			case d.IsDir():
				return fs.SkipDir
			default:
				return nil
			}
		}
		if d.IsDir() {
			return t.enter(fsys, name, modules)
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		dir := path.Dir(name)
		p := packages[dir]
		if p == nil {
			p = &Package{Dir: dir}
			packages[dir] = p
			t.Packages = append(t.Packages, p)
		}
		return p.add(fsys, name)
	})
	slices.SortFunc(t.Packages, func(a, b *Package) int { return cmp.Compare(a.Dir, b.Dir) })
	return t, err
}

// enter returns fs.SkipDir if the go command would not look for packages of modules in dir.
func (t *Tree) enter(fsys fs.FS, dir string, modules []string) error {
	base := path.Base(dir)
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" {
		return fs.SkipDir
	}
	if _, err := fs.Stat(fsys, path.Join(dir, "go.mod")); err == nil && !slices.Contains(modules, "./"+dir) {
		t.Apart = append(t.Apart, dir)
		return fs.SkipDir
	}
	return nil
}

// readIgnored returns a match of root names against the simple patterns of .gitignore: a name or a glob, with or without
// slashes around it.
func readIgnored(fsys fs.FS) (func(name string) bool, error) {
	data, err := fs.ReadFile(fsys, ".gitignore")
	if err != nil {
		return nil, fmt.Errorf("read what git ignores: %w", err)
	}
	var globs []string
	for line := range strings.Lines(string(data)) {
		glob := strings.Trim(strings.TrimSpace(line), "/")
		if glob != "" && !strings.HasPrefix(glob, "#") {
			globs = append(globs, glob)
		}
	}
	return func(name string) bool {
		return slices.ContainsFunc(globs, func(glob string) bool {
			ok, _ := path.Match(glob, name)
			return ok
		})
	}, nil
}

func (p *Package) add(fsys fs.FS, name string) error {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	at := func(n ast.Node) string {
		pos := set.Position(n.Pos())
		return pos.Filename + ":" + strconv.Itoa(pos.Line)
	}
	p.Files = append(p.Files, path.Base(name))
	pkg := strings.TrimSuffix(file.Name.Name, "_test")
	if !slices.Contains(p.Names, pkg) {
		p.Names = append(p.Names, pkg)
		slices.Sort(p.Names)
	}

	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			p.addDoc(at, d.Doc, d.Name.Name)
		case *ast.GenDecl:
			if d.Tok == token.TYPE && !d.Lparen.IsValid() {
				p.addDoc(at, d.Doc, d.Specs[0].(*ast.TypeSpec).Name.Name)
			}
		}
	}
	timeName := ""
	test := strings.HasSuffix(name, "_test.go")
	for _, spec := range file.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", at(spec), err)
		}
		i := Import{Pos: at(spec), Path: target}
		if test {
			p.TestImports = append(p.TestImports, i)
		} else {
			p.Imports = append(p.Imports, i)
		}
		if target == "time" {
			timeName = "time"
			if spec.Name != nil {
				timeName = spec.Name.Name
			}
		}
	}
	if test {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			p.Goroutines = append(p.Goroutines, Place{at(n), "go statement"})
		case *ast.CallExpr:
			// sync.WaitGroup and errgroup.Group start goroutines by this name.
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Go" {
				p.Goroutines = append(p.Goroutines, Place{at(n), "call of Go"})
			}
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && x.Name == timeName && readsClock[n.Sel.Name] {
				p.Clocks = append(p.Clocks, Place{at(n), "time." + n.Sel.Name})
			}
		}
		return true
	})
	return nil
}

func (p *Package) addDoc(at func(ast.Node) string, doc *ast.CommentGroup, name string) {
	if doc != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(doc.Text()), " ")
		p.Docs = append(p.Docs, Doc{at(doc), first, name})
	}
}

// readsClock names what in package time reads the process's clock or waits for it.
var readsClock = map[string]bool{
	"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
	"Tick": true, "NewTicker": true, "NewTimer": true,
}
