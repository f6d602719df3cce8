//go:build !unix

package offheap

// PageBytes is the size of a page.
const PageBytes = 4096

// Page is a page of memory, on Go's heap here.
type Page [PageBytes]byte

// Arena hands out pages.
type Arena struct{}

// New returns an Arena.
func New() *Arena { return &Arena{} }

// Get returns a page of zeros.
func (a *Arena) Get() *Page { return new(Page) }

// Put takes back a page that Get returned.
func (a *Arena) Put(*Page) {}
