package message

import "github.com/sluice-project/sluice/bucket"

func (*Report) body()  {}
func (*Account) body() {}

// Report says what the sender has admitted by itself of keys that the receiver holds. Its
// lines are sums, so it may be lost, doubled and late.
type Report struct {
	// Sent is the sender's clock (ns); the Account returns it.
	Sent  int64
	Lines []Line
}

// Line is one key of a Report.
type Line struct {
	Key    bucket.Key
	Limits *bucket.Limits
	// Ends is the end of the window that the sum belongs to, by the holder's clock (Unix ns); 0 if the sender
	// does not know the window yet, and has admitted nothing.
	Ends int64
	// Sum is all that the sending process has admitted in that window, at least 0. It never gets less.
	Sum int64
	// Transient is as in a bucket.Request.
	Transient bool
}

// Account answers a Report, as far as the sender holds its keys.
type Account struct {
	// Sent is that of the Report, Clock the sender's Unix time (ns).
	Sent, Clock int64
	Lines       []Standing
}

// Standing is how one key stands after a Report.
type Standing struct {
	Key bucket.Key
	// Ends is the end of the window that the sender is in (Unix ns).
	Ends int64
	// Known is the highest sum that the key's counter has of the reporter in this window, Remaining what is left of the limit then.
	Known, Remaining int64
	// Reporters is among how many processes that is to be shared, at least 1.
	Reporters int
}
