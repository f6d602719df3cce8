// Package snapshot keeps a node's counters on disk: the format of the file, and what
// is done to the directory it lies in. It decides whether a file may be used: one that is
// damaged, of another format, of another node or cluster, or from the future is refused
// as a whole, with a [Refusal] that says why.
//
// It leaves to others what is in a snapshot and when one is made, what bucket.Image says
// inside, and what to do after a refusal. It reads no clock, starts no goroutine and logs
// nothing.
//
// # Directory
//
//	lock                            held by the process that has the directory open
//	counters.snapshot               the last whole snapshot
//	counters.snapshot.new           the one being written; what a crash leaves of it is removed
//	deferred.snapshot               of the same format: what is still to be charged to the owners of keys
//	counters.snapshot.refused-TIME  set aside, for people to look at; the newest three
//
// A snapshot is written under its temporary name, brought to the disk, then renamed, so at any
// time the directory has the old one or the new one, whole.
//
// # Format
//
// Numbers of fixed size are little-endian, others are the varints of encoding/binary, texts have
// their length before them. Checksums are CRC-32C.
//
//	file     = "sluice\r\n" | version uint32 | checksum of these 12 bytes | records
//	record   = kind byte | length uint32 | payload | checksum of kind, length and payload
//	records  = header | any number of limits, sections and images | trailer
//	header   = placement, fingerprint, name, boot, begun, partitions, stable set
//	limits   = number | JSON: one set of limits, which images refer to by the number
//	section  = partition, flags, time of its export, mark, start mark
//	image    = how many counters, the numbers of their limits, counters of the section before it
//	trailer  = totals | checksum of all before it but the records' own checksums
//
// The trailer's sum leaves out the records' checksums because a CRC over bytes and then their
// CRC no longer depends on the bytes: it would not see that records changed places.
//
// What comes before the records is the same in every version. Within a version, limits may get new fields
// and values: a set that this program cannot read is nil in the image, which costs its
// counters and no others. Everything else needs a new version.
package snapshot
