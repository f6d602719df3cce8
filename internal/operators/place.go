// Package operators has the local ways to a node as its operator: a unix socket that only the user of the node can open, and
// a token for the admin port that only this user can read. Both are in a directory of this user alone, in files named by the
// node's gRPC address, so that `sluice` finds them by the address that it calls.
//
// It identifies an operator by access to these files, never by an address, and decides no permissions. It starts no goroutine.
package operators

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// maxSocketPath is the longest path of a socket on all systems, in bytes.
const maxSocketPath = 103

// Dirs are the directories that a node without --operators-dir tries, in this order: one of this user's in XDG_RUNTIME_DIR, in the
// directory for temporary files, or in /dev/shm, which containers with a read-only file system have.
func Dirs() []string {
	name := "sluice"
	if uid := os.Getuid(); uid >= 0 {
		name += "-" + strconv.Itoa(uid)
	}
	var dirs []string
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		dirs = append(dirs, filepath.Join(run, "sluice"))
	}
	dirs = append(dirs, filepath.Join(os.TempDir(), name))
	if runtime.GOOS == "linux" {
		dirs = append(dirs, filepath.Join("/dev/shm", name))
	}
	return dirs
}

// Place is the socket and the files of one node. Make it with Open and close it with Close.
type Place struct {
	base     string
	listener net.Listener
}

// Open makes the directory dir if it is missing, and listens on the socket of the node at the gRPC address addr. The directory
// must be this user's alone. An empty dir stands for the first usable one of Dirs.
func Open(dir, addr string) (*Place, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		return openIn(dir, addr)
	}
	var errs []error
	for _, dir := range Dirs() {
		err := os.Mkdir(dir, 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			var p *Place
			if p, err = openIn(dir, addr); err == nil {
				return p, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func openIn(dir, addr string) (*Place, error) {
	if err := private(dir); err != nil {
		return nil, err
	}
	p := &Place{base: filepath.Join(dir, fileName(addr))}
	path := p.Socket()
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%s: a socket's path has at most %d bytes; use a shorter directory", path, maxSocketPath)
	}
	if answers("unix", path) {
		return nil, fmt.Errorf("%s: another process listens there", path)
	}
	if err := p.remove(); err != nil { // files of a process that was killed
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	p.listener = l
	if err := os.Chmod(path, 0o600); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// private returns an error unless dir is a directory that only this user may enter.
func private(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s: is no directory", dir)
	case !own(info):
		return fmt.Errorf("%s: belongs to another user; remove it, or use another directory", dir)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s: other users may enter (mode %#o); chmod 700 it, or use another directory", dir, info.Mode().Perm())
	}
	return nil
}

// Listener is the socket, open to this user alone.
func (p *Place) Listener() net.Listener { return p.listener }

// Socket is the path of the socket.
func (p *Place) Socket() string { return p.base + ".sock" }

// token and admin are the paths of the files with the token, and with the address of the admin port.
func (p *Place) token() string { return p.base + ".token" }
func (p *Place) admin() string { return p.base + ".admin" }

// PutToken writes token, and the address of the admin port that takes it.
func (p *Place) PutToken(token, admin string) error {
	return errors.Join(os.WriteFile(p.token(), []byte(token+"\n"), 0o600), os.WriteFile(p.admin(), []byte(admin+"\n"), 0o600))
}

// Close closes the listener and removes the files, unless these are of a process that was started since, at the same address.
func (p *Place) Close() error {
	p.listener.Close() // a server may have closed it already
	if answers("unix", p.Socket()) {
		return nil
	}
	return p.remove()
}

func (p *Place) remove() error {
	var errs []error
	for _, file := range []string{p.Socket(), p.token(), p.admin()} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// fileName is the name of the files of the node at addr, without their endings.
func fileName(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, ""
	}
	return strings.NewReplacer(":", "_", "%", "_", "/", "_", `\`, "_").Replace(host) + "-" + port
}

// answers reports whether address accepts connections.
func answers(network, address string) bool {
	conn, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
