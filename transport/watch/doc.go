// Package watch shows the cluster live: while somebody watches, a Hub asks all nodes once a second what they tell of
// themselves, adds it up, and gives every watcher the same encoded events. While nobody does, it does nothing. The adding up (sum.go)
// is pure; Hub.Run is the one goroutine, and the caller's.
//
// It asks for what it is given the means for, and shows nothing that is private: descriptors come as transport names
// them. Who may watch, and how events travel, is for transport/console to say.
package watch
