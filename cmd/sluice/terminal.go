package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
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

// fprint prints text. On a terminal it folds lines that are too long, and colours it unless NO_COLOR is set.
func fprint(w io.Writer, text string) error {
	if !coloured(w) {
		text = ansi.Strip(text)
	}
	if tty, ok := terminal(w); ok {
		wide, _ := sizeOf(tty)
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			lines[i] = fold(line, wide)
		}
		text = strings.Join(lines, "\n")
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

// wrap breaks text at spaces, so that no line is longer than n columns, and indents all lines but the first.
func wrap(text string, n int, indent string) string {
	const keep = "\ue000" // for a hyphen, which is no place to break: it may begin a flag
	text = ansi.Wrap(strings.ReplaceAll(text, "-", keep), n, "")
	return strings.NewReplacer("\n", "\n"+indent, keep, "-").Replace(text)
}

// fold wraps a line to n columns. Further lines are indented.
func fold(line string, n int) string {
	const indent = "    "
	if ansi.StringWidth(line) <= n || n <= 2*len(indent) {
		return line
	}
	first, _, _ := strings.Cut(wrap(line, n, ""), "\n")
	return first + "\n" + indent + wrap(strings.TrimLeft(line[len(first):], " "), n-len(indent), indent)
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
	lines := strings.Split(strings.TrimSuffix(g.Builder.String(), "\n"), "\n")
	for _, align := range []bool{false, true} {
		for i, line := range lines {
			cells := strings.Split(line, "\t")
			for j, c := range cells[:len(cells)-1] {
				if j == len(widths) {
					widths = append(widths, 0)
				}
				widths[j] = max(widths[j], ansi.StringWidth(c)+2)
				cells[j] += strings.Repeat(" ", widths[j]-ansi.StringWidth(c))
			}
			if align {
				lines[i] = strings.Join(cells, "")
			}
		}
	}
	return strings.Join(lines, "\n") + "\n"
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
	if line = ansi.Truncate(line, wide-1, "…"); !coloured(p.out) {
		line = ansi.Strip(line)
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
		lines[i] = ansi.Truncate(l, wide, "…") + "\x1b[K"
	}
	out := strings.Join(lines[:min(len(lines), high)], "\r\n")
	if !colour {
		out = ansi.Strip(out)
	}
	return "\x1b[H" + out
}
