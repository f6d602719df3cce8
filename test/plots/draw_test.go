package plots

import (
	"bytes"
	"fmt"
	"time"
)

// style is that of all pictures of docs/: readable on light and on dark pages.
const style = `<style>
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.h{font-weight:600}.s{font-size:11.5px;fill:#57606a}.m{text-anchor:middle}.e{text-anchor:end}
.card{fill:#fff;stroke:#d0d7de}.g{stroke:#d8dee4;fill:none}.l{stroke:#8c959f;fill:none;stroke-dasharray:4 3}
.d{fill:#6e7781;fill-opacity:.22}.a{fill:#0969da}
.y{fill:#1a7f37}.n{stroke:#cf222e;stroke-width:2.2;fill:none}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.s{fill:#9198a1}.card{fill:#0d1117;stroke:#3d444d}.g{stroke:#2a313c}.l{stroke:#656c76}
.d{fill:#9198a1;fill-opacity:.25}.a{fill:#58a6ff}.y{fill:#3fb950}.n{stroke:#f85149}
}
</style>
`

// left and right are where time begins and ends, from the top on the rows; each picture is wide.
const (
	wide  = 720
	left  = 140
	right = 640
)

// picture is an SVG under way, with time from left to right.
type picture struct {
	bytes.Buffer
	length time.Duration
}

// newPicture begins one of so much time. What it says to who cannot see it is title and description.
func newPicture(height int, length time.Duration, title, description string) *picture {
	p := &picture{length: length}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="t d">`+"\n",
		wide, height, wide, height)
	fmt.Fprintf(p, "<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n%s", title, description, style)
	fmt.Fprintf(p, `<rect class="card" x=".5" y=".5" width="%d" height="%d" rx="8"/>`+"\n", wide-1, height-1)
	p.text(16, 24, "h", title)
	return p
}

// x is where t is.
func (p *picture) x(t time.Duration) float64 { return left + (right-left)*float64(t)/float64(p.length) }

func (p *picture) text(x, y float64, class, text string) {
	fmt.Fprintf(p, `<text x="%s" y="%s" class="%s">%s</text>`+"\n", number(x), number(y), class, text)
}

func (p *picture) dot(x, y, radius float64) {
	fmt.Fprintf(p, `<circle class="y" cx="%s" cy="%s" r="%s"/>`+"\n", number(x), number(y), number(radius))
}

func (p *picture) cross(x, y, size float64) {
	fmt.Fprintf(p, `<path class="n" d="M%s %sL%s %sM%s %sL%s %s"/>`+"\n",
		number(x-size), number(y-size), number(x+size), number(y+size), number(x-size), number(y+size), number(x+size), number(y-size))
}

func (p *picture) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(p, `<path class="%s" d="M%s %sL%s %s"/>`+"\n", class, number(x1), number(y1), number(x2), number(y2))
}

func (p *picture) bar(class string, x, y, width, height float64) {
	if height > 0 {
		fmt.Fprintf(p, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`+"\n", class, number(x), number(y), number(width), number(height))
	}
}

// times writes the time under the rows, and lines up to their top.
func (p *picture) times(top, bottom float64, step time.Duration) {
	for t := time.Duration(0); t <= p.length; t += step {
		p.line("g", p.x(t), top, p.x(t), bottom)
		p.text(p.x(t), bottom+18, "s m", fmt.Sprintf("%d:%02d", t/time.Minute, t%time.Minute/time.Second))
	}
}

func (p *picture) end() []byte {
	p.WriteString("</svg>\n")
	return p.Bytes()
}

// number writes v with at most one digit behind the point.
func number(v float64) string {
	s := fmt.Sprintf("%.1f", v)
	if s[len(s)-1] == '0' {
		s = s[:len(s)-2]
	}
	return s
}
