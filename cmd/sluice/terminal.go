package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminal returns w as a file if it is a terminal.
func terminal(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// Colours of paint.
const red, green, yellow, bold, dim = "31", "32", "33", "1", "2"

// paint colours text. fprint takes the colour out where there is no terminal for it.
func paint(colour, text string) string { return "\x1b[" + colour + "m" + text + "\x1b[0m" }

var painted = regexp.MustCompile("\x1b\\[[0-9]*m")

// fprint prints text. On a terminal it folds lines that are too long, and colours it unless NO_COLOR is set.
func fprint(w io.Writer, text string) error {
	if !coloured(w) {
		text = painted.ReplaceAllString(text, "")
	}
	if tty, ok := terminal(w); ok {
		wide, _ := sizeOf(tty)
		var b strings.Builder
		for line := range strings.Lines(text) {
			b.WriteString(fold(line, wide))
		}
		text = b.String()
	}
	_, err := io.WriteString(w, text)
	return err
}

func coloured(w io.Writer) bool {
	_, isTerminal := terminal(w)
	none, _ := lookupEnv("NO_COLOR")
	kind, _ := lookupEnv("TERM")
	return isTerminal && none == "" && kind != "dumb"
}

// columns is the number of columns that r takes, 2 for wide runes of East Asia and pictures.
func columns(r rune) int {
	if r >= 0x1100 && (r <= 0x115f || r >= 0x2e80) {
		return 2
	}
	return 1
}

// width is the number of columns that text takes, without colours.
func width(text string) (n int) {
	for _, r := range painted.ReplaceAllString(text, "") {
		n += columns(r)
	}
	return n
}

// cut shortens a line to n columns, with colours or without.
func cut(line string, n int) string {
	if width(line) <= n {
		return line
	}
	var b strings.Builder
	for left := n - 1; line != ""; {
		if colour := painted.FindString(line); colour != "" && strings.HasPrefix(line, colour) {
			b.WriteString(colour)
			line = line[len(colour):]
			continue
		}
		r, size := utf8.DecodeRuneInString(line)
		if left -= columns(r); left < 0 {
			break
		}
		b.WriteString(line[:size])
		line = line[size:]
	}
	return b.String() + "…\x1b[0m"
}

// fold breaks a line at spaces, so that no part is longer than n columns. Further parts are indented.
func fold(line string, n int) string {
	const indent = "    "
	var b strings.Builder
	for width(strings.TrimSuffix(line, "\n")) > n && n > 2*len(indent) {
		at, space, used := 0, 0, 0
		for at < len(line) {
			if colour := painted.FindStringIndex(line[at:]); colour != nil && colour[0] == 0 {
				at += colour[1]
				continue
			}
			r, size := utf8.DecodeRuneInString(line[at:])
			if used += columns(r); used > n {
				break
			}
			if at += size; r == ' ' && used > len(indent) {
				space = at
			}
		}
		if space > 0 {
			at = space
		}
		b.WriteString(strings.TrimRight(line[:at], " ") + "\n")
		line = indent + strings.TrimLeft(line[at:], " ")
	}
	return b.String() + line
}

// sizeOf returns the columns and lines of a terminal.
func sizeOf(tty *os.File) (wide, high int) {
	wide, high, err := term.GetSize(int(tty.Fd()))
	if err != nil || wide < 1 || high < 1 {
		return 80, 24
	}
	return wide, high
}

// grid aligns columns: its lines are written with tabs between cells, which may have colours.
type grid struct{ strings.Builder }

// String returns the aligned lines.
func (g *grid) String() string {
	var widths []int
	var rows [][]string
	for line := range strings.Lines(g.Builder.String()) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		for i, c := range cells[:len(cells)-1] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(c))
		}
		rows = append(rows, cells)
	}
	var b strings.Builder
	for _, cells := range rows {
		for i, c := range cells[:len(cells)-1] {
			b.WriteString(c + strings.Repeat(" ", widths[i]-width(c)+2))
		}
		b.WriteString(cells[len(cells)-1] + "\n")
	}
	return b.String()
}

// bar is a bar of n columns that is full to a share of 0 to 1.
func bar(share float64, n int) string {
	full := int(min(1, max(0, share))*float64(n) + 0.5)
	return strings.Repeat("#", full) + strings.Repeat(".", n-full)
}

// brief rounds a duration up to what people read. A wait that is as long is never too short.
func brief(d time.Duration) string {
	up := func(unit time.Duration) time.Duration { return (d + unit - 1) / unit * unit }
	switch {
	case d > 1<<62:
		return "for ever"
	case d < time.Millisecond:
		return up(10 * time.Microsecond).String()
	case d < time.Second:
		return up(time.Millisecond).String()
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", up(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return up(time.Second).String()
	case d < time.Hour:
		return exact(up(time.Second))
	case d < 48*time.Hour:
		return exact(up(time.Minute))
	}
	return fmt.Sprintf("%dd", up(24*time.Hour)/(24*time.Hour))
}

// exact is d without units that are zero: 1h, not 1h0m0s.
func exact(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// progress is a line on a terminal that each update replaces. On anything else it is nothing.
type progress struct{ out *os.File }

func newProgress(w io.Writer) progress {
	f, ok := terminal(w)
	if !ok {
		return progress{}
	}
	return progress{f}
}

// show replaces the line. passed and all are times; text stands behind the bar.
func (p progress) show(passed, all time.Duration, text string) {
	if p.out == nil {
		return
	}
	wide, _ := sizeOf(p.out)
	left := max(0, all-passed).Round(time.Second)
	line := fmt.Sprintf("[%s] %v, %v left: %s", bar(float64(passed)/float64(max(1, all)), 16), passed.Round(time.Second), left, text)
	if line = cut(line, wide-1); !coloured(p.out) {
		line = painted.ReplaceAllString(line, "")
	}
	fmt.Fprint(p.out, "\r\x1b[K", line)
}

// clear removes the line.
func (p progress) clear() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// view is what live shows. Its methods are called by one goroutine; what ask returns runs beside it.
type view interface {
	// ask prepares a call of the nodes. It returns how to draw the answer.
	ask() func(ctx context.Context) (draw func() string, err error)
	// key takes a key of the user and reports whether the nodes have to be asked again.
	key(k byte) (again bool)
	// help is the line at the bottom.
	help() string
}

// live shows v on the alternate screen of a terminal until q, Ctrl-C or the end of ctx. An error is shown until the next answer.
func live(ctx context.Context, tty *os.File, every time.Duration, v view) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fd := int(tty.Fd())
	keys := make(chan byte)
	if before, err := term.MakeRaw(fd); err == nil {
		defer func() { _ = term.Restore(fd, before) }()
		go readKeys(ctx, tty, keys)
	}
	if _, err := io.WriteString(tty, "\x1b[?1049h\x1b[?25l"); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(tty, "\x1b[?25h\x1b[?1049l") }()
	type answer struct {
		draw func() string
		err  error
	}
	answers, asking := make(chan answer, 1), false
	ask := func() {
		if asking {
			return
		}
		asking = true
		call := v.ask()
		go func() {
			draw, err := call(ctx)
			answers <- answer{draw, err}
		}()
	}
	tick, look := time.NewTicker(every), time.NewTicker(250*time.Millisecond)
	defer tick.Stop()
	defer look.Stop()
	draw, last, again := func() string { return "" }, "", ""
	ask()
	for {
		wide, high := sizeOf(tty)
		if next := frame(again+draw(), v.help(), wide, high, coloured(tty)); next != last {
			last = next
			if _, err := io.WriteString(tty, next); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C: // for the size
		case <-tick.C:
			ask()
		case k := <-keys:
			if k == 'q' || k == 3 || k == 4 { // Ctrl-C, Ctrl-D
				return nil
			}
			if v.key(k) {
				ask()
			}
		case a := <-answers:
			asking, again = false, ""
			if a.err != nil {
				again = paint(red, a.err.Error()) + "\n"
			} else {
				draw = a.draw
			}
		}
	}
}

func readKeys(ctx context.Context, tty io.Reader, keys chan<- byte) {
	var b [1]byte
	for {
		if n, err := tty.Read(b[:]); err != nil || n == 0 {
			return
		}
		select {
		case keys <- b[0]:
		case <-ctx.Done():
			return
		}
	}
}

// frame is what draws text and the help below it on a screen. It clears no more than it must, so that nothing flickers.
func frame(text, help string, wide, high int, colour bool) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	lines = lines[:min(len(lines), max(1, high-1))]
	for len(lines) < high-1 {
		lines = append(lines, "")
	}
	lines = append(lines, paint(dim, help))
	for i, l := range lines[:min(len(lines), high)] {
		lines[i] = cut(l, wide) + "\x1b[K"
	}
	out := strings.Join(lines[:min(len(lines), high)], "\r\n")
	if !colour {
		out = painted.ReplaceAllString(out, "")
	}
	return "\x1b[H" + out
}
