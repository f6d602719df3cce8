// Command release builds what a release of sluice consists of, the same bytes whoever builds it and wherever: an
// archive for each system with the binary, its licence and the README, a bill of materials of each binary, a container
// image of each binary for Linux, and the checksums of all. `make release` runs it.
//
// The binaries depend on the source, the version and the version of Go, which the bills of materials tell; the archives
// on these and on the time of the commit. It starts no goroutine.
package main
