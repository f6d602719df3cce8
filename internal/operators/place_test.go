//go:build unix

package operators

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shortDir is a directory whose name leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ops")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestOpenAndFind(t *testing.T) {
	dir := filepath.Join(shortDir(t), "a", "b")
	for _, c := range []struct {
		listens      string
		found, other []string
	}{
		{"127.0.0.1:7460", []string{"127.0.0.1:7460", "localhost:7460"}, []string{"127.0.0.2:7460", "127.0.0.1:7461", "[::1]:7460", "example.com:7460", "127.0.0.1", ""}},
		{"[::]:7460", []string{"127.0.0.1:7460", "[::1]:7460", "127.9.9.9:7460", "localhost:7460", "[::]:7460"}, []string{"192.0.2.1:7460", "example.com:7460", "127.0.0.1:7461"}},
		{"0.0.0.0:7460", []string{"127.0.0.1:7460"}, []string{"192.0.2.1:7460"}},
	} {
		p, err := Open(dir, c.listens)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", dir, info.Mode(), err)
		}
		if info, err := os.Stat(p.Socket()); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", p.Socket(), info.Mode(), err)
		}
		for _, addr := range c.found {
			if way, ok := Find(dir, addr); !ok || way.String() != p.Socket() || way.Token != "" {
				t.Errorf("%s at %s: %v %v", c.listens, addr, way, ok)
			}
		}
		for _, addr := range c.other {
			if way, ok := Find(dir, addr); ok {
				t.Errorf("%s at %s: %v", c.listens, addr, way)
			}
		}
		if _, err := Open(dir, c.listens); err == nil || !strings.Contains(err.Error(), "another process") {
			t.Errorf("opened twice: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// TestToken: without a socket the token and the admin port are found, as long as something listens there; and a node that was
// killed is no obstacle to the next.
func TestToken(t *testing.T) {
	dir := shortDir(t)
	killed, err := Open(dir, "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	killed.listener.(*net.UnixListener).SetUnlinkOnClose(false)
	killed.listener.Close()
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := killed.PutToken("secret", admin.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if way, ok := Find(dir, "127.0.0.1:1"); !ok || way.Token != "secret" || way.String() != admin.Addr().String() {
		t.Errorf("%v %v", way, ok)
	}
	admin.Close()
	if way, ok := Find(dir, "127.0.0.1:1"); ok {
		t.Errorf("found where nothing listens: %v", way)
	}
	p, err := Open(dir, "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := os.Stat(p.token()); !os.IsNotExist(err) {
		t.Errorf("the token of the node that was killed: %v", err)
	}
}

// TestDirsOfOthers: a directory that others may enter, or have made, is neither used nor believed.
func TestDirsOfOthers(t *testing.T) {
	base := shortDir(t)
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		open: "chmod 700", link: "no directory", filepath.Join(base, strings.Repeat("x", 100)): "a shorter directory",
	} {
		if p, err := Open(dir, "127.0.0.1:7460"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v", dir, p, err)
		}
	}
	if os.Getuid() == 0 { // who else can give a directory away
		given := filepath.Join(base, "given")
		if err := os.Mkdir(given, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(given, 65532, 65532); err != nil {
			t.Fatal(err)
		}
		if p, err := Open(given, "127.0.0.1:7460"); err == nil || !strings.Contains(err.Error(), "another user") {
			t.Errorf("%v %v", p, err)
		}
	}
	// By default, one that cannot be used leaves the next.
	t.Setenv("XDG_RUNTIME_DIR", base)
	t.Setenv("TMPDIR", shortDir(t))
	if err := os.Symlink(t.TempDir(), filepath.Join(base, "sluice")); err != nil {
		t.Fatal(err)
	}
	p, err := Open("", "127.0.0.1:7460")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if !strings.HasPrefix(p.Socket(), os.TempDir()) {
		t.Errorf("the socket is %s", p.Socket())
	}
	if way, ok := Find("", "127.0.0.1:7460"); !ok || way.String() != p.Socket() {
		t.Errorf("%v %v", way, ok)
	}
}

// TestCloseLeavesOthersFiles: a node that leaves closes its port first; another may be started there before it ends.
func TestCloseLeavesOthersFiles(t *testing.T) {
	dir := shortDir(t)
	const addr = "127.0.0.1:7460"
	old, err := Open(dir, addr)
	if err != nil {
		t.Fatal(err)
	}
	old.Listener().Close()
	other, err := Open(dir, addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	if way, ok := Find(dir, addr); !ok || way.String() != other.Socket() {
		t.Errorf("the other process's socket: %v %v", way, ok)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
