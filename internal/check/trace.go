package check

// Trace is a place in a trace that is being recorded: the span that what follows goes below. What is
// not recorded has no Trace, a nil pointer, and costs nothing by that.
type Trace struct {
	ID   [16]byte
	Span [8]byte
}
