//go:build !unix

package bucket

// arena hands out pages of Go's own memory, where nothing better is known.
type arena struct{}

func newArena() *arena       { return &arena{} }
func (a *arena) get() *page  { return new(page) }
func (a *arena) put(p *page) {}
