package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"
)

// screen is a pseudo terminal, and what was written to it.
type screen struct {
	tty, keyboard *os.File
	mu            sync.Mutex
	text          bytes.Buffer
	read          chan struct{}
}

// newScreen opens a terminal of this size until the test ends.
func newScreen(t *testing.T, wide, high uint16) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	do(t, err)
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: high, Col: wide})
	}
	do(t, err)
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	do(t, err)
	s := &screen{tty: tty, keyboard: master, read: make(chan struct{})}
	go func() {
		defer close(s.read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			s.mu.Lock()
			s.text.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return // the terminal was closed
			}
		}
	}()
	t.Cleanup(func() {
		_, _ = master.WriteString("\n") // for the goroutine that reads keys
		tty.Close()
		<-s.read
		master.Close()
	})
	return s
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

var (
	controls = regexp.MustCompile("\x1b\\[[?0-9;]*[a-zA-Z]")
	newLine  = regexp.MustCompile("\r?\n")
)

// shown are the lines of the last frame on the alternate screen, or else of all that was printed, as they look.
func (s *screen) shown() []string {
	text := s.String()
	text, _, _ = strings.Cut(text, "\x1b[?1049l")
	text = text[strings.LastIndex(text, "\x1b[H")+1:]
	lines := newLine.Split(text, -1)
	for i, l := range lines {
		if at := strings.LastIndex(l, "\r"); at >= 0 { // replaced
			l = l[at+1:]
		}
		lines[i] = strings.TrimRight(controls.ReplaceAllString(strings.TrimPrefix(l, "[H"), ""), "\r")
	}
	return lines
}

// fits fails the test if a line is wider than the terminal, and keeps the lines for people where SLUICE_CAPTURES names a directory.
func (s *screen) fits(t *testing.T, name string, wide int) {
	t.Helper()
	lines := s.shown()
	for _, l := range lines {
		if ansi.StringWidth(l) > wide {
			t.Errorf("%s: a line of %d columns, want at most %d: %s", name, ansi.StringWidth(l), wide, l)
		}
	}
	if dir := os.Getenv("SLUICE_CAPTURES"); dir != "" {
		if err := os.WriteFile(fmt.Sprintf("%s/%s.txt", dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// TestOnATerminal: what the commands show on terminals of several sizes is not wider, and leaves no trace after q.
func TestOnATerminal(t *testing.T) {
	n := startNode(t, testConfig(t))
	for i := range 12 {
		for range 4 {
			cli("check", "--addr", n.grpc, "--domain", "auth", fmt.Sprintf("user=somebody-with-quite-a-long-name-%d@example.com", i))
		}
	}
	for _, size := range [][2]uint16{{80, 24}, {40, 8}, {200, 50}} {
		wide, high := size[0], size[1]
		for _, c := range []struct {
			name string
			args []string
			want string
		}{
			{"top", []string{"top"}, "PER SECOND"},
			{"status", []string{"status", "--watch"}, "Healthy"},
		} {
			s := newScreen(t, wide, high)
			done := make(chan int, 1)
			go func() { done <- run(context.Background(), append(c.args, "--addr", n.grpc), s.tty, s.tty) }()
			await(t, "drawn", func() bool { return strings.Contains(s.String(), c.want) })
			name := fmt.Sprintf("%s-%dx%d", c.name, wide, high)
			await(t, "drawn to the end", func() bool { return len(s.shown()) == int(high) })
			s.fits(t, name, int(wide))
			if lines := s.shown(); wide >= 80 && !strings.Contains(lines[len(lines)-1], "q quit") {
				t.Errorf("%s: the last line is %q", name, lines[len(lines)-1])
			}
			if _, err := s.keyboard.Write([]byte("q")); err != nil {
				t.Fatal(err)
			}
			if code := <-done; code != 0 {
				t.Errorf("%s: exit code %d", name, code)
			}
			await(t, "restored", func() bool { return strings.HasSuffix(s.String(), "\x1b[?25h\x1b[?1049l") })
		}
	}
	for _, c := range []struct {
		name string
		args []string
		want []string // in what is left to read, the first line first
	}{
		{"status-once", []string{"status"}, []string{"Healthy: 1 of 1 nodes serve, quorum 1 of 1", "DENIED/S"}},
		{"bench", []string{"bench", "--duration", "1500ms", "--warmup", "100ms", "--concurrency", "2"}, []string{"nodes  ", "latency of calls", "below "}},
		{"audit", []string{"audit", "--duration", "1500ms", "--keys", "20", "--concurrency", "2"}, []string{"nodes  ", "PASS: "}},
		{"check", []string{"check", "--domain", "auth", "user=b"}, []string{"ALLOWED  1/2 left"}},
		{"members", []string{"members"}, []string{"Healthy: "}},
	} {
		s := newScreen(t, 80, 24)
		if code := run(context.Background(), append(c.args, "--addr", n.grpc), s.tty, s.tty); code != 0 {
			t.Errorf("%s: exit code %d: %s", c.name, code, s)
		}
		await(t, "printed", func() bool { return strings.Contains(strings.Join(s.shown(), "\n"), c.want[len(c.want)-1]) })
		s.fits(t, c.name+"-80x24", 80)
		lines := s.shown()
		if !strings.HasPrefix(lines[0], c.want[0]) {
			t.Errorf("%s begins with %q", c.name, lines[0])
		}
		for _, w := range c.want {
			if !strings.Contains(strings.Join(lines, "\n"), w) {
				t.Errorf("%s: no %q in\n%s", c.name, w, strings.Join(lines, "\n"))
			}
		}
		if (c.name == "bench" || c.name == "audit") && !strings.Contains(s.String(), "left: ") {
			t.Errorf("%s shows no progress: %q", c.name, s.String())
		}
		if !strings.Contains(s.String(), "\x1b[3") && c.name != "bench" {
			t.Errorf("%s has no colour: %q", c.name, s.String())
		}
	}
	t.Setenv("NO_COLOR", "1")
	s := newScreen(t, 80, 24)
	run(context.Background(), []string{"status", "--addr", n.grpc}, s.tty, s.tty)
	await(t, "printed", func() bool { return strings.Contains(s.String(), "DENIED/S") })
	if text := s.String(); strings.Contains(text, "\x1b[") {
		t.Errorf("NO_COLOR is not heard: %q", text)
	}
}

func TestFold(t *testing.T) {
	for _, c := range []struct {
		line string
		n    int
		want string
	}{
		{"short\n", 10, "short\n"},
		{"one two three four\n", 12, "one two\n    three\n    four\n"},
		{"0123456789abcdef\n", 10, "0123456789\n    abcdef\n"},
		{"\x1b[31mone\x1b[0m two three\n", 9, "\x1b[31mone\x1b[0m two\n    three\n"},
		{"wait with --callers or not\n", 16, "wait with\n    --callers or\n    not\n"},
		{"日本語日本語\n", 10, "日本語日本\n    語\n"},
	} {
		if got := fold(strings.TrimSuffix(c.line, "\n"), c.n) + "\n"; got != c.want {
			t.Errorf("%q in %d columns: %q, want %q", c.line, c.n, got, c.want)
		}
	}
}

func TestBrief(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Nanosecond: "10µs", 12345 * time.Microsecond: "13ms", 1983987365 * time.Nanosecond: "2.0s", 11*time.Second + 1: "12s",
		200 * time.Second: "3m20s", time.Hour: "1h", 2*time.Hour + time.Second: "2h1m", 50 * time.Hour: "3d", 1<<63 - 1: "for ever",
	} {
		if got := brief(d); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}
