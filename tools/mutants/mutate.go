package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// mutant is a file with one change.
type mutant struct {
	file         string // an absolute path
	line, column int
	what         string
	text         []byte
}

func (m mutant) place() string {
	return fmt.Sprintf("%s:%d:%d", filepath.Base(m.file), m.line, m.column)
}

// mutantsOf returns the mutants of the package in dir, in the order of its files.
func mutantsOf(dir string) ([]mutant, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		of, err := mutate(filepath.Join(dir, name), text)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// others are the operators that take another's place.
var others = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL,
	token.AND: token.OR, token.OR: token.AND, token.SHL: token.SHR, token.SHR: token.SHL, token.AND_NOT: token.AND,
	token.INC: token.DEC, token.DEC: token.INC,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN, token.OR_ASSIGN: token.AND_ASSIGN,
}

// mutate returns the mutants of a file in the order of their places.
func mutate(file string, text []byte) ([]mutant, error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []mutant
	replace := func(from, to token.Pos, by string) {
		at := files.Position(from)
		i, j := at.Offset, files.Position(to).Offset
		was := string(text[i:j])
		if len(was) > 60 {
			was = was[:57] + "..."
		}
		what := fmt.Sprintf("%q for %q", by, was)
		if by == "" {
			what = fmt.Sprintf("without %q", was)
		}
		all = append(all, mutant{file, at.Line, at.Column, what, slices.Concat(text[:i], []byte(by), text[j:])})
	}
	operator := func(at token.Pos, op token.Token) {
		if other, ok := others[op]; ok {
			replace(at, at+token.Pos(len(op.String())), other.String())
		}
	}
	// without leaves a statement out. Its lines stay, so that places stay the same.
	without := func(s ast.Stmt) { replace(s.Pos(), s.End(), "") }
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR // constants, types and imports are no behavior
		case *ast.BinaryExpr:
			operator(n.OpPos, n.Op)
		case *ast.IncDecStmt:
			operator(n.TokPos, n.Tok)
			without(n)
		case *ast.AssignStmt:
			operator(n.TokPos, n.Tok)
			if n.Tok != token.DEFINE {
				without(n)
			}
		case *ast.ExprStmt, *ast.DeferStmt, *ast.SendStmt:
			without(n.(ast.Stmt))
		case *ast.BranchStmt:
			if n.Label == nil && (n.Tok == token.BREAK || n.Tok == token.CONTINUE) {
				without(n)
			}
		case *ast.IfStmt:
			replace(n.Cond.Pos(), n.Cond.Pos(), "!(")
			m := &all[len(all)-1]
			end := files.Position(n.Cond.End()).Offset + len("!(")
			m.text = slices.Concat(m.text[:end], []byte(")"), m.text[end:])
			m.what = "the condition negated"
		case *ast.UnaryExpr:
			if n.Op == token.NOT || n.Op == token.SUB {
				replace(n.OpPos, n.X.Pos(), "")
			}
		case *ast.BasicLit:
			if n.Kind == token.INT {
				if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
					replace(n.Pos(), n.End(), strconv.FormatInt(v+1, 10))
				}
			}
		case *ast.Ident:
			if n.Name == "true" || n.Name == "false" {
				replace(n.Pos(), n.End(), strconv.FormatBool(n.Name == "false"))
			}
		}
		return true
	})
	return slices.DeleteFunc(all, func(m mutant) bool { return bytes.Equal(m.text, text) }), nil
}
