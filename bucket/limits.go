package bucket

// Limits is an immutable, validated set of limits that one key is held to
// together. Interned values compare by pointer first.
type Limits struct {
	list []Limit
}

// MaxLimits is the most limits that one key can have.
const MaxLimits = 16

// FieldError says which field of a Limit is wrong.
type FieldError struct {
	// Index is the limit's place in the set.
	Index int
	// Field is its name as rule files spell it, for example "period".
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// NewLimits validates list (1 to MaxLimits limits) and prepares it for use.
// The error is a *FieldError.
func NewLimits(list ...Limit) (*Limits, error) { panic("seam") }

// Len returns the number of limits.
func (l *Limits) Len() int { return len(l.list) }

// At returns limit i.
func (l *Limits) At(i int) Limit { return l.list[i] }

// Equal reports whether both hold equal limits in the same order.
func (l *Limits) Equal(m *Limits) bool { panic("seam") }

// Unlimited reports whether no limit of the set can deny or count.
func (l *Limits) Unlimited() bool { panic("seam") }

// Share returns the limits divided by n, rounded down (n at least 1), for a node that
// answers alone. Counts and bursts that become 0 block.
func (l *Limits) Share(n int) *Limits { panic("seam") }
