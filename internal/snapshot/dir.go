// Package snapshot keeps a node's counters on disk: the file format and the directory. It decides whether a file may be used:
// one that is damaged, of another format, node or cluster, or from the future is rejected completely, with a [Rejection].
// What is in a snapshot, when one is made, and what happens after a rejection is the caller's decision. It reads no clock,
// starts no goroutine and logs nothing.
//
// # Directory
//
//	lock                            held by the process that has the directory open
//	counters.snapshot               the last complete snapshot
//	counters.snapshot.new           the one being written; Open removes what a crash has left of it
//	deferred.snapshot               of the same format: deferred charges, see [Dir.Deferred]
//	counters.snapshot.rejected-TIME  set aside for inspection; the newest three
//
// A snapshot is written under its temporary name, synced to the disk, then renamed, so the directory always has the complete
// old one or the complete new one.
//
// # Format
//
// Numbers of fixed size are little-endian, payloads CBOR, checksums CRC-32C.
//
//	file     = "sluice\r\n" | version uint32 | checksum of these 12 bytes | records
//	record   = kind byte | length uint32 | payload | checksum of kind, length and payload
//	records  = header | any number of limits, sections and images | trailer
//	header   = Header
//	limits   = the number that images refer to it by, and one set of limits
//	section  = Section
//	image    = number of counters, numbers of their limits, then the data of a bucket.Image, of the section before it
//	trailer  = totals, and the checksum of all before it but the records' own checksums
//
// The trailer's sum leaves out the records' checksums, because a CRC over bytes and then their CRC no longer depends on the
// bytes: it would not detect exchanged records.
//
// The part before the records is the same in every version. Within a version, limits may get new fields and values: a set
// that this program cannot read is nil in the image, and only its counters are lost. Any other change needs a new version.
package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// Names in the directory.
const (
	lockName = "lock"
	fileName = "counters.snapshot"
	tempName = fileName + ".new"
	// deferredName is the file of deferred charges, see Dir.Deferred.
	deferredName = "deferred.snapshot"
)

// ErrInUse is returned for a directory that another process has open.
var ErrInUse = errors.New("another process uses it; give each node a directory of its own, or stop the other process")

// ErrWriting is returned by Create while another Writer is at work.
var ErrWriting = errors.New("a snapshot is being written already")

// Dir is a data directory, locked against other processes. It must be created with Open and closed with Close. It is safe for
// concurrent use; its Readers and Writers are not.
type Dir struct {
	path string
	root *os.Root
	lock *os.File
	name string // of the snapshot

	writing atomic.Bool // there is a Writer
}

// Open makes the directory if it is missing, locks it, and removes the remains of an unfinished snapshot. Errors name the path.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make directory %s: %w", path, err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", path, bare(err))
	}
	d := &Dir{path: path, root: root, name: fileName}
	if err := d.open(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Dir) open() (err error) {
	if d.lock, err = d.root.OpenFile(lockName, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return fmt.Errorf("directory %s must be writable: open %s: %w", d.path, lockName, bare(err))
	}
	if err := lock(d.lock); err != nil {
		return fmt.Errorf("lock directory %s: %w", d.path, err)
	}
	for _, s := range []*Dir{d, d.Deferred()} {
		if err := s.discard(); err != nil {
			return fmt.Errorf("directory %s must be writable: remove %s: %w", d.path, s.temp(), bare(err))
		}
	}
	return nil
}

// Deferred returns the same directory with another snapshot: of the deferred charges that this node still owes to the owners of
// keys. It is closed with d.
func (d *Dir) Deferred() *Dir { return &Dir{path: d.path, root: d.root, name: deferredName} }

// Close unlocks the directory. Writers and readers must have ended.
func (d *Dir) Close() error {
	err := d.root.Close()
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// Create begins a snapshot, which replaces the last one when it is committed. There can be one at a time: see ErrWriting.
func (d *Dir) Create(h Header) (*Writer, error) {
	if !d.writing.CompareAndSwap(false, true) {
		return nil, ErrWriting
	}
	return newWriter(d, d.file(d.name), h, func() { d.writing.Store(false) })
}

// Read opens the snapshot after verifying all of it. It returns nil if there is none, and a *Rejection if it must not be used.
func (d *Dir) Read(want Want) (*Reader, error) {
	name := d.file(d.name)
	// Opening a pipe would block.
	info, err := d.root.Lstat(d.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, reject(name, err)
	case !info.Mode().IsRegular():
		return nil, reject(name, &damage{what: "it is not a regular file"})
	}
	f, err := d.root.Open(d.name)
	if err != nil {
		return nil, reject(name, err)
	}
	if info, err = f.Stat(); err != nil {
		f.Close()
		return nil, reject(name, err)
	}
	return newReader(f, name, info.Size(), want)
}

// The steps of a Writer.

func (d *Dir) create() (file, error) {
	if err := d.discard(); err != nil {
		return nil, err
	}
	return d.root.OpenFile(d.temp(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

func (d *Dir) publish() error { return d.root.Rename(d.temp(), d.name) }

func (d *Dir) sync() error {
	if runtime.GOOS == "windows" {
		return nil // which cannot sync directories, and journals renames
	}
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *Dir) discard() error { return d.root.RemoveAll(d.temp()) }

func (d *Dir) temp() string { return d.name + ".new" }

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

// bare returns err without the path, which the caller adds in full.
func bare(err error) error {
	switch e := err.(type) {
	case *fs.PathError:
		return e.Err
	case *os.LinkError:
		return e.Err
	}
	return err
}

// maxAside is how many rejected files are kept.
const maxAside = 3

// aside is a rejected file: when it was set aside, and its number among those of that second.
type aside struct {
	second int64
	nth    int
}

const asidePrefix = fileName + ".rejected-"

// SetAside renames the snapshot, so that it can be inspected and the next start does not reject it again, and returns its new
// path. The newest three are kept.
func (d *Dir) SetAside(now time.Time) (string, error) {
	name, err := d.setAside(max(0, now.Unix()))
	if err != nil {
		return "", fmt.Errorf("set snapshot %s aside: %w", d.file(fileName), bare(err))
	}
	return d.file(name), nil
}

func (d *Dir) setAside(second int64) (string, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return "", err
	}
	var old []aside
	next := aside{second: second}
	for _, e := range entries {
		if a, ok := parseAside(e.Name()); ok {
			old = append(old, a)
			if a.second == second {
				next.nth = max(next.nth, a.nth+1)
			}
		}
	}
	if err := d.root.Rename(fileName, next.name()); err != nil {
		return "", err
	}
	slices.SortFunc(old, func(a, b aside) int {
		return cmp.Or(cmp.Compare(a.second, b.second), cmp.Compare(a.nth, b.nth))
	})
	for len(old) >= maxAside {
		if err := d.root.RemoveAll(old[0].name()); err != nil {
			return "", err
		}
		old = old[1:]
	}
	return next.name(), d.sync()
}

func (a aside) name() string {
	if a.nth == 0 {
		return fmt.Sprint(asidePrefix, a.second)
	}
	return fmt.Sprintf("%s%d-%d", asidePrefix, a.second, a.nth)
}

func parseAside(name string) (a aside, ok bool) {
	n, _ := fmt.Sscanf(name, asidePrefix+"%d-%d", &a.second, &a.nth)
	return a, n > 0 && a.name() == name
}
