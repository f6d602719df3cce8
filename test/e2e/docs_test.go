package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// repository is the root of the checkout, seen from this package.
const repository = "../.."

// TestDocCommands runs every command of the README and of every page under docs, in the order of the page, against the demo and the
// nodes that the page starts. It changes ports, and how long an audit or a bench goes on. What cannot run here is listed below, with the reason.
func TestDocCommands(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the pages use 127.0.1.1 to 127.0.1.3")
	}
	pages, err := filepath.Glob(filepath.Join(repository, "docs", "*", "*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	base := demoPort(t)
	runDemo(t, base)
	readme := filepath.Join(repository, "README.md")
	for _, page := range append(pages, readme) {
		commands := pageCommands(t, page)
		if page == readme && len(commands) < 8 {
			t.Errorf("only %d commands found in the README", len(commands))
		}
		if len(commands) == 0 {
			continue
		}
		t.Run(strings.TrimPrefix(page, repository+"/"), func(t *testing.T) {
			r := docRun{t: t, base: base, folder: workplace(t)}
			for _, c := range commands {
				r.run(c)
			}
		})
	}
}

// elsewhere are commands that do not run here, by how they begin, and why.
var elsewhere = []struct{ begins, why string }{
	{"kubectl ", "needs a Kubernetes cluster; test/integration/manifests decodes what it would apply"},
	{"docker ", "needs an engine; deploy/compose has a test of its own"},
	{"grpcurl ", "is not part of Go; transport/grpcapi tests reflection"},
	{"go tool pprof ", "shows a page and waits"},
	{"curl --unix-socket ", "needs a node in its usual place; cmd/sluice tests the operators' socket"},
	{"curl -H \"Authorization: Bearer $(cat ", "needs the same; cmd/sluice tests the token"},
	{"bin/sluice spend ID ", "needs an ID; cmd/sluice tests it"},
	{"bin/sluice settle ID ", "as above"},
	{"curl 127.0.0.1:7461/v1/settle ", "as above; transport/httpapi tests it"},
	{"sudo ", "needs another user"},
	{"ssh ", "needs another machine"},
	{"bin/sluice audit --addr 127.0.0.1:7460 --discover --inline-limits=false", "asks for a rule that readers have to write; cmd/sluice tests it"},
	{"curl -i 127.0.0.1:7461/v1/authorize/web ", "asks for a rule file that is copied before; test/integration/proxies does"},
}

// denials may end with status 1: a limit that is reached is an answer.
var denials = regexp.MustCompile(`^bin/sluice (check|members|health)\b`)

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")

// pageCommands returns the commands of a page's sh blocks but for the demo, which is running. Lines are one command where a quote
// is open, or the line ends with a backslash.
func pageCommands(t *testing.T, page string) (commands []string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, block := range shellBlock.FindAllStringSubmatch(string(data), -1) {
		for line := range strings.SplitSeq(strings.TrimSpace(block[1]), "\n") {
			if len(open) == 0 && (strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") || line == "bin/sluice demo") {
				continue
			}
			open = append(open, line)
			text := strings.Join(open, "\n")
			if strings.Count(text, "'")%2 == 0 && !strings.HasSuffix(line, `\`) {
				commands, open = append(commands, text), nil
			}
		}
	}
	return append(commands, open...)
}

// workplace is a folder that looks like the checkout and may be written to.
func workplace(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(folder, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"bin/sluice": process.Binary}
	for _, name := range []string{"examples", "deploy", "docs", "Makefile"} {
		links[name] = filepath.Join(root, name)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// docRun runs the commands of one page.
type docRun struct {
	t      *testing.T
	base   int
	folder string
	serves int
	// starting are the nodes that are not ready yet: those of a page may wait for each other.
	starting []starting
	closed   bool // a node that asks for certificates runs, with those that the page has made
}

// starting is a node of a page, by its line.
type starting struct {
	line string
	log  *process.LogBuffer
}

// await waits until the nodes that were started are ready.
func (r *docRun) await() {
	for _, s := range r.starting {
		process.Eventually(r.t, 20*time.Second, s.line, func() error {
			if !strings.Contains(s.log.String(), "msg=ready") {
				return fmt.Errorf("so far:\n%s", s.log)
			}
			return nil
		})
	}
	r.starting = nil
}

var (
	ports    = regexp.MustCompile(`:(7460|7461|7464|7470|7471|7480)\b`)
	mention  = regexp.MustCompile(`(^|[;|&(] *|do )sluice `)
	bareAddr = regexp.MustCompile(`(--addr) (127(?:\.\d+){3})(\s|$)`)
	howLong  = regexp.MustCompile(`--duration \d+s`)
)

func (r *docRun) run(c string) {
	t := r.t
	t.Helper()
	c = mention.ReplaceAllString(c, "${1}bin/sluice ")
	for _, e := range elsewhere {
		if strings.HasPrefix(c, e.begins) {
			t.Logf("not run: %s: it %s", c, e.why)
			return
		}
	}
	base := r.base
	if strings.Contains(c, "127.0.1.") {
		base += 100
	}
	line := strings.ReplaceAll(c, " PATH", " examples/rules")
	line = bareAddr.ReplaceAllString(line, "$1 $2:7460$3")
	line = howLong.ReplaceAllString(line, "--duration 2s")
	if strings.HasPrefix(line, "bin/sluice audit ") && !howLong.MatchString(line) {
		line += " --duration 2s"
	}
	line = ports.ReplaceAllStringFunc(line, func(port string) string {
		n, _ := strconv.Atoi(port[1:])
		return fmt.Sprint(":", base+n-7460)
	})
	if strings.Contains(line, "--ca certs/") && !r.closed {
		r.closed = true
		r.serve("bin/sluice serve --name n1 --bind 127.0.1.9 --tls-cert certs/n1.crt --tls-key certs/n1.key"+
			" --tls-client-ca certs/ca.crt --tls-client-auth require", base+100)
	}
	serves := strings.HasPrefix(line, "bin/sluice serve ") && !strings.Contains(line, "--help")
	if !serves {
		r.await()
	}
	switch {
	case strings.HasPrefix(line, "make "):
		for _, target := range strings.Fields(line)[1:] {
			if strings.Contains(target, "=") {
				continue
			}
			if out, err := exec.Command("make", "-C", repository, "-n", target).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
	case serves:
		r.serve(line, base)
	case strings.HasPrefix(line, "bin/sluice top") && !strings.Contains(line, "--once"), strings.HasPrefix(line, "curl -N"):
		r.interrupted(line, base)
	case strings.HasPrefix(line, "curl "):
		r.curl(line, base)
	default:
		out, err := r.command(line, base).CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 1 && denials.MatchString(line) {
			err = nil
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
			return
		}
		t.Logf("%s\n%s", line, out)
	}
}

// command is a line of a page, in the workplace, with the addresses that clients ask by default.
func (r *docRun) command(line string, base int) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), "sh", "-c", line)
	cmd.Dir = r.folder
	addr := fmt.Sprintf("127.0.0.1:%d", base)
	if strings.Contains(line, "--ca certs/") {
		addr = fmt.Sprintf("127.0.1.9:%d", base+100)
	}
	cmd.Env = append(os.Environ(), "SLUICE_ADDR="+addr)
	return cmd
}

// serve starts a node and leaves it running until the page is done.
func (r *docRun) serve(line string, base int) {
	cmd := r.command("exec "+line, base)
	for i, port := range []string{"GRPC", "HTTP", "PEER", "GOSSIP"} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("SLUICE_%s_PORT=%d", port, base+i))
	}
	admin := 0
	if r.serves == 0 {
		admin = r.base + 7464 - 7460 // the pages ask it at 127.0.0.1
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("SLUICE_ADMIN_ADDR=127.0.0.1:%d", admin))
	log := &process.LogBuffer{}
	cmd.Stderr = log
	startCommand(r.t, cmd)
	r.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	r.starting = append(r.starting, starting{line, log})
	r.serves++
}

// interrupted runs what goes on until Ctrl-C, until it has shown something. curl does not end well then.
func (r *docRun) interrupted(line string, base int) {
	cmd, out := r.command("exec "+line, base), &process.LogBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	startCommand(r.t, cmd)
	process.Eventually(r.t, 10*time.Second, line, func() error {
		if out.String() == "" {
			return errors.New("it shows nothing")
		}
		return nil
	})
	end := syscall.SIGINT
	if strings.HasPrefix(line, "curl") {
		end = syscall.SIGTERM // a shell has what it runs in the background ignore the other, and curl's user would not
	}
	cmd.Process.Signal(end)
	if err := cmd.Wait(); err != nil && !strings.HasPrefix(line, "curl") {
		r.t.Errorf("%s: %v after Ctrl-C\n%s", line, err, out)
	}
}

// curl makes a call. Rejections that a page is about are answers too.
func (r *docRun) curl(line string, base int) {
	if _, err := exec.LookPath("curl"); err != nil {
		r.t.Logf("no curl on this machine: %s", line)
		return
	}
	out, err := r.command(line+` -sS -w '\n%{http_code}'`, base).CombinedOutput()
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	status, numberErr := strconv.Atoi(string(lines[len(lines)-1]))
	if err != nil || numberErr != nil || status >= 400 && !slices.Contains([]int{401, 403, 409, 429}, status) {
		r.t.Errorf("%s: %v\n%s", line, err, out)
		return
	}
	r.t.Logf("%s\n%s", line, out)
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
)

// TestDocLinks follows every link from page to page, with its anchor.
func TestDocLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*/*.md", "docs/internals/adr/*.md", "deploy/*/*.md", "deploy/*/*/*.md", "examples/*/*.md", "bench/*.md"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 40 {
		t.Fatalf("only %d pages", len(pages))
	}
	read := func(page string) string {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		return fence.ReplaceAllString(string(data), "")
	}
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(read(page), -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") || strings.HasPrefix(file, "mailto:") {
				continue
			}
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
				continue
			}
			if anchor == "" || filepath.Ext(target) != ".md" {
				continue
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(read(target), -1) {
				anchors = append(anchors, slug(h[1]))
			}
			if !slices.Contains(anchors, anchor) {
				t.Errorf("%s: %s: no such heading", page, m[1])
			}
		}
	}
}

// slug is the anchor that hosts of Markdown make of a heading.
func slug(heading string) string {
	heading = link.ReplaceAllString(heading, "]")
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteRune('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			b.WriteRune(r)
		}
	}
	return b.String()
}
