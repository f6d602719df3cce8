package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

func TestMutate(t *testing.T) {
	const text = `package p

const most = 3

func f(a, b int) bool {
	if a < b && !g() {
		return true
	}
	for {
		a++
		g()
		break
	}
	return a+1 == -b
}
`
	all, err := mutate("p.go", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, m.text, 0); err != nil {
			t.Errorf("%s: %s: %v", m.place(), m.what, err)
		}
		if strings.Count(string(m.text), "\n") != strings.Count(text, "\n") {
			t.Errorf("%s: %s: other lines", m.place(), m.what)
		}
		got = append(got, m.place()+" "+m.what)
	}
	want := []string{
		`p.go:6:5 the condition negated`, `p.go:6:11 "||" for "&&"`, `p.go:6:7 "<=" for "<"`, `p.go:6:14 without "!"`,
		`p.go:7:10 "false" for "true"`, `p.go:10:4 "--" for "++"`, `p.go:10:3 without "a++"`, `p.go:11:3 without "g()"`,
		`p.go:12:3 without "break"`, `p.go:14:13 "!=" for "=="`, `p.go:14:10 "-" for "+"`, `p.go:14:11 "2" for "1"`, `p.go:14:16 without "-"`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
