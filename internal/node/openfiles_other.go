//go:build !unix

package node

// maxDescriptors returns 0: there is no such limit.
func maxDescriptors() uint64 { return 0 }
