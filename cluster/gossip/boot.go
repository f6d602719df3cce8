package gossip

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// bootLength is the length of every boot id: 16 hex digits, a dash, 8 hex digits.
const bootLength = 16 + 1 + 8

// NewBoot makes the boot id of a process that started at start: nanoseconds since
// 1970 in fixed-width hex, a dash, and random bits in case two start at once. The
// later start sorts higher.
func NewBoot(start time.Time, random uint32) string {
	return fmt.Sprintf("%016x-%08x", uint64(max(start.UnixNano(), 0)), random)
}

// randomBoot makes a boot id for this process, starting now.
func randomBoot() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process if there is no randomness
	return NewBoot(time.Now(), binary.LittleEndian.Uint32(b[:]))
}

// validBoot reports whether s is what NewBoot makes.
func validBoot(s string) bool {
	if len(s) != bootLength || s[16] != '-' {
		return false
	}
	return strings.Trim(s[:16]+s[17:], "0123456789abcdef") == ""
}

// fullName is what memberlist knows a process by. Names contain no slash.
func fullName(name, boot string) string { return name + "/" + boot }
