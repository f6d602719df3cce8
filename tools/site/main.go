// Command site renders the Markdown of the repository as a static site with a sidebar and a search:
//
//	site ROOT OUT
//
// Pages refer to each other by relative addresses and load nothing else, so the site works from a folder (file://) too.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// source is where links to files that are no pages lead.
const source = "https://github.com/sluicecluster/sluice/blob/main/"

//go:embed page.html
var layout string

// page is one Markdown file. Root is the way from it to the site's first page's folder.
type page struct {
	Path, URL, Title, Root string
	Body                   template.HTML
}

// group is a chapter of the sidebar.
type group struct {
	Title string
	Pages []*page
}

// entry is a section that the search finds.
type entry struct {
	Title string `json:"t"`
	URL   string `json:"u"`
	Text  string `json:"s"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: site ROOT OUT")
		os.Exit(2)
	}
	if err := build(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func build(root, out string) error {
	pages, err := find(root)
	if err != nil {
		return err
	}
	urls := map[string]string{}
	for _, p := range pages {
		urls[p.Path] = p.URL
	}
	var index []entry
	for _, p := range pages {
		entries, err := p.render(root, urls)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		index = append(index, entries...)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		return err
	}
	groups := sidebar(pages, string(readme))
	tmpl := template.Must(template.New("page").Parse(layout))
	for _, p := range pages {
		var b bytes.Buffer
		if err := tmpl.Execute(&b, map[string]any{"Page": p, "Groups": groups}); err != nil {
			return err
		}
		if err := write(filepath.Join(out, p.URL), b.Bytes()); err != nil {
			return err
		}
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(out, "search.js"), []byte("const index = "+string(data)+";\n")); err != nil {
		return err
	}
	return os.CopyFS(filepath.Join(out, "docs", "img"), os.DirFS(filepath.Join(root, "docs", "img")))
}

func write(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o644)
}

// find returns the pages of root: Markdown at the top, and below docs, deploy and examples.
func find(root string) (pages []*page, err error) {
	for _, dir := range []string{".", "docs", "deploy", "examples"} {
		err := fs.WalkDir(os.DirFS(root), dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && dir == "." && name != "." {
				return fs.SkipDir
			}
			if path.Ext(name) == ".md" {
				p := &page{Path: name, URL: strings.TrimSuffix(name, ".md") + ".html"}
				if name == "README.md" {
					p.URL = "index.html"
				}
				p.Root = strings.Repeat("../", strings.Count(name, "/"))
				pages = append(pages, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// render sets the body and the title, and returns a search entry for each section.
func (p *page) render(root string, urls map[string]string) (entries []entry, err error) {
	data, err := os.ReadFile(filepath.Join(root, p.Path))
	if err != nil {
		return nil, err
	}
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithUnsafe()))
	doc := md.Parser().Parse(text.NewReader(data), parser.WithContext(parser.NewContext(parser.WithIDs(slugs{}))))
	at := entry{URL: p.URL}
	var b strings.Builder
	flush := func() {
		if at.Text = strings.Join(strings.Fields(b.String()), " "); at.Title != "" {
			entries = append(entries, at)
		}
		b.Reset()
	}
	err = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			b.WriteByte(' ')
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			flush()
			at.Title = string(plain(n, data))
			if p.Title == "" {
				p.Title = at.Title
			} else if id, ok := n.AttributeString("id"); ok {
				at.URL = p.URL + "#" + string(id.([]byte))
				at.Title = p.Title + ": " + at.Title
			}
		case *ast.Link:
			n.Destination = []byte(p.link(string(n.Destination), urls))
		case *ast.Text:
			b.Write(n.Segment.Value(data))
			b.WriteByte(' ')
		case *ast.FencedCodeBlock:
			b.Write(n.Lines().Value(data))
		}
		return ast.WalkContinue, nil
	})
	flush()
	var out bytes.Buffer
	if err == nil {
		err = md.Renderer().Render(&out, data, doc)
	}
	p.Body = template.HTML(out.String()) // #nosec G203: the repository's own pages
	return entries, err
}

// link leads to the page of a Markdown file, and to the repository for other files.
func (p *page) link(to string, urls map[string]string) string {
	file, anchor, _ := strings.Cut(to, "#")
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") || file == "" {
		return to
	}
	target := path.Join(path.Dir(p.Path), file)
	url, ok := urls[target]
	if !ok {
		url, ok = urls[path.Join(target, "README.md")]
	}
	switch {
	case !ok:
		return source + target
	case anchor != "":
		url += "#" + anchor
	}
	return p.Root + url
}

// plain is the text of a node.
func plain(n ast.Node, data []byte) (out []byte) {
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if t, ok := c.(*ast.Text); ok {
			out = append(out, t.Segment.Value(data)...)
		}
		out = append(out, plain(c, data)...)
	}
	return out
}

// slugs names headings as GitHub does, so that anchors in the pages hold here and there.
type slugs struct{}

var links = regexp.MustCompile(`\]\([^)\s]*\)`)

func (slugs) Generate(value []byte, _ ast.NodeKind) []byte {
	var b bytes.Buffer
	for _, r := range strings.ToLower(links.ReplaceAllString(string(value), "]")) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

func (slugs) Put([]byte) {}

// sidebar has the groups of docs, each in the order in which the README links to its pages, then the others.
func sidebar(pages []*page, readme string) []group {
	groups := []group{{Title: "Start"}, {Title: "Use"}, {Title: "Operate"}, {Title: "Internals"}}
	rank := func(p *page) int {
		if i := strings.LastIndex(readme, "]("+p.Path+")"); i >= 0 {
			return i
		}
		return len(readme)
	}
	for i := range groups {
		g := &groups[i]
		for _, p := range pages {
			if path.Dir(p.Path) == "docs/"+strings.ToLower(g.Title) {
				g.Pages = append(g.Pages, p)
			}
		}
		slices.SortStableFunc(g.Pages, func(a, b *page) int { return rank(a) - rank(b) })
	}
	return groups
}
