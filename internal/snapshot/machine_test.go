package snapshot

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

// machine is a computer with one directory, which can fail at any step and lose its power: then
// what was not synced may be gone, in whole or in part.
type machine struct {
	// names is what processes see.
	names map[string]*inode
	// onDisk is what the disk surely has. The changes since, in their order, may have got there.
	onDisk  map[string]*inode
	changes []func(map[string]*inode)

	steps int // taken so far
	// failAt is the step that fails, half done if it is a write; -1 for none. dead: and
	// all that come after it.
	failAt int
	dead   bool
}

// inode is a file, of which the first synced bytes are surely on the disk.
type inode struct {
	m      *machine
	data   []byte
	synced int
}

var errStep = errors.New("input/output error")

// newMachine returns one that has the snapshot old, if that is not nil.
func newMachine(old []byte) *machine {
	m := &machine{names: map[string]*inode{}, onDisk: map[string]*inode{}, failAt: -1}
	if old != nil {
		f := &inode{m, old, len(old)}
		m.names[fileName], m.onDisk[fileName] = f, f
	}
	return m
}

func (m *machine) step() error {
	m.steps++
	if n := m.steps - 1; m.failAt >= 0 && (n == m.failAt || m.dead && n > m.failAt) {
		return errStep
	}
	return nil
}

func (m *machine) change(f func(map[string]*inode)) error {
	if err := m.step(); err != nil {
		return err
	}
	f(m.names)
	m.changes = append(m.changes, f)
	return nil
}

func (m *machine) create() (file, error) {
	f := &inode{m: m}
	return f, m.change(func(names map[string]*inode) { names[tempName] = f })
}

func (m *machine) publish() error {
	return m.change(func(names map[string]*inode) {
		names[fileName] = names[tempName]
		delete(names, tempName)
	})
}

func (m *machine) discard() error {
	return m.change(func(names map[string]*inode) { delete(names, tempName) })
}

func (m *machine) sync() error {
	if err := m.step(); err != nil {
		return err
	}
	m.onDisk, m.changes = maps.Clone(m.names), nil
	return nil
}

func (f *inode) Write(b []byte) (int, error) {
	err := f.m.step()
	if err != nil {
		b = b[:len(b)/2]
	}
	f.data = append(f.data, b...)
	return len(b), err
}

func (f *inode) Sync() error {
	if err := f.m.step(); err != nil {
		return err
	}
	f.synced = len(f.data)
	return nil
}

func (f *inode) Close() error { return f.m.step() }

// afterwards yields every snapshot that may be found there: nil for none. cut: the power was cut.
func (m *machine) afterwards(cut bool, yield func(data []byte)) {
	data := func(names map[string]*inode) []byte {
		if f := names[fileName]; f != nil {
			return f.data
		}
		return nil
	}
	if !cut {
		yield(data(m.names))
		return
	}
	for n := range len(m.changes) + 1 {
		names := maps.Clone(m.onDisk)
		for _, change := range m.changes[:n] {
			change(names)
		}
		f := names[fileName]
		if f == nil {
			yield(nil)
			continue
		}
		yield(f.data)
		unsynced := len(f.data) - f.synced
		yield(f.data[:f.synced+unsynced/2])
		// The length has got there, the bytes have not.
		yield(append(slices.Clone(f.data[:f.synced]), make([]byte, unsynced)...))
	}
}

// write writes c and commits it.
func (m *machine) write(c content) error {
	w, err := newWriter(m, fileName, c.Header, func() {})
	if err != nil {
		return err
	}
	defer w.Abort()
	if err := c.write(w); err != nil {
		return err
	}
	return w.Commit()
}

func (m *machine) do(t testing.TB, c content) {
	t.Helper()
	do(t, m.write(c))
}
