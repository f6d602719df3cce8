// Package snapshot keeps a node's counters on disk: the format of the file, and what
// is done to the directory it lies in. It decides whether a file may be used: one that is
// damaged, of another format, of another node or cluster, or from the future is rejected
// as a whole, with a [Rejection] that says why.
//
// It leaves to others what is in a snapshot and when one is made, what bucket.Image says
// inside, and what to do after a rejection. It reads no clock, starts no goroutine and logs
// nothing.
//
// # Directory
//
//	lock                            held by the process that has the directory open
//	counters.snapshot               the last whole snapshot
//	counters.snapshot.new           the one being written; what a crash leaves of it is removed
//	deferred.snapshot               of the same format: what is still to be charged to the owners of keys
//	counters.snapshot.rejected-TIME  set aside, for people to look at; the newest three
//
// A snapshot is written under its temporary name, brought to the disk, then renamed, so at any
// time the directory has the old one or the new one, whole.
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
//	image    = how many counters, the numbers of their limits, and after that the data of a bucket.Image, of the section before it
//	trailer  = totals, and the checksum of all before it but the records' own checksums
//
// The trailer's sum leaves out the records' checksums because a CRC over bytes and then their
// CRC no longer depends on the bytes: it would not see that records changed places.
//
// What comes before the records is the same in every version. Within a version, limits may get new fields
// and values: a set that this program cannot read is nil in the image, which costs its
// counters and no others. Everything else needs a new version.
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
	"strconv"
	"strings"
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

// Dir is a data directory, kept from other processes while it is open. Must be created with
// Open and closed with Close. Safe for concurrent use; its Readers and Writers are not.
type Dir struct {
	path string
	root *os.Root
	lock *os.File
	name string // of the snapshot
	// writing keeps a second Writer out.
	writing atomic.Bool
}

// Open makes the directory if need be, locks it, and removes what a crash has left there of a
// snapshot. Errors say what cannot be done to which path.
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

// Deferred returns the same directory with another snapshot, of the charges that a node still owes to the owners of keys. It is
// small, and written by itself when they change. It is closed with d.
func (d *Dir) Deferred() *Dir { return &Dir{path: d.path, root: d.root, name: deferredName} }

// Close lets other processes have the directory. Writers and readers have to be done.
func (d *Dir) Close() error {
	err := d.root.Close()
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// Create begins a snapshot. It takes the place of the last one when it is committed. There can be
// one at a time: see ErrWriting.
func (d *Dir) Create(h Header) (*Writer, error) {
	if !d.writing.CompareAndSwap(false, true) {
		return nil, ErrWriting
	}
	return newWriter(d, d.file(d.name), h, func() { d.writing.Store(false) })
}

// Read opens the snapshot after verifying all of it. It returns nil and no error if there is none,
// and a *Rejection if it must not be used.
func (d *Dir) Read(want Want) (*Reader, error) {
	name := d.file(d.name)
	// A pipe would be waited for, so look before opening.
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

// bare returns what went wrong without the path, which the caller names in full.
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

// aside is a rejected file: when it was set aside, and which one of that second.
type aside struct {
	name   string
	second int64
	nth    int
}

const asidePrefix = fileName + ".rejected-"

// SetAside renames the snapshot, so that people can look at it and the next one is not
// rejected too, and returns its new path. The newest three are kept.
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
	nth := 0
	for _, e := range entries {
		a, ok := parseAside(e.Name())
		if !ok {
			continue
		}
		old = append(old, a)
		if a.second == second {
			nth = max(nth, a.nth+1)
		}
	}
	name := asidePrefix + strconv.FormatInt(second, 10)
	if nth > 0 {
		name += "-" + strconv.Itoa(nth)
	}
	if err := d.root.Rename(fileName, name); err != nil {
		return "", err
	}
	slices.SortFunc(old, func(a, b aside) int {
		return cmp.Or(cmp.Compare(a.second, b.second), cmp.Compare(a.nth, b.nth))
	})
	for len(old) >= maxAside {
		if err := d.root.RemoveAll(old[0].name); err != nil {
			return "", err
		}
		old = old[1:]
	}
	return name, d.sync()
}

func parseAside(name string) (a aside, ok bool) {
	rest, ok := strings.CutPrefix(name, asidePrefix)
	if !ok {
		return a, false
	}
	number, nth, many := strings.Cut(rest, "-")
	second, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return a, false
	}
	a = aside{name: name, second: second}
	if many {
		if a.nth, err = strconv.Atoi(nth); err != nil || a.nth < 1 {
			return a, false
		}
	}
	return a, true
}
