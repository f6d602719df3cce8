package bucket

// The sliding window of n sub-windows: spending is summed per sub-window of
// ⌈period / n⌉, aligned to the epoch, and what counts is this sub-window and the
// n before it. Together they cover (now − period, now] and up to one sub-window more,
// so it never admits more than the log.
//
// It is kept as a log whose entries are dated at the beginnings of sub-windows and count for n + 1 of them
// (kindBins; see slidinglog.go): at most n + 1 entries, and memory only for the
// sub-windows in which something was spent.
