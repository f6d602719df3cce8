package gossip

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

// libraryLogger passes memberlist's lines on to l at debug: what matters to an
// operator this package logs itself. The library's own level becomes the
// attribute "severity". Lines about messages that are no gossip are counted in
// malformed, too, and one a minute becomes a warning.
func libraryLogger(l *slog.Logger, malformed *atomic.Uint64) *log.Logger {
	return log.New(&libraryLines{log: l, malformed: malformed}, "", 0)
}

type libraryLines struct {
	log       *slog.Logger
	malformed *atomic.Uint64
	warned    atomic.Int64 // when, in Unix seconds
}

// noise is what memberlist's lines about messages that it cannot read say.
var noise = []string{
	"not supported", "invalid msgType", "Failed to decode", "missing message type", "invalid checksum",
	"truncated", "decompress", "failed to receive", "unacceptable label", "stream label header",
	"Decrypt packet failed", "not encrypted", "could decrypt", "is encrypted",
}

// quietNoise is how long nothing is said of noise once it was.
const quietNoise = 60 // seconds

// Write takes one line of the form "[WARN] memberlist: text". memberlist may hold
// its lock, so it returns at once when debug is off.
func (w *libraryLines) Write(line []byte) (int, error) {
	if isNoise(line) {
		w.malformed.Add(1)
		now, last := time.Now().Unix(), w.warned.Load()
		if now-last >= quietNoise && w.warned.CompareAndSwap(last, now) {
			_, text := parseLine(line)
			w.log.Warn("something that is no gossip comes to the gossip port", "detail", text)
		}
	}
	if w.log.Enabled(context.Background(), slog.LevelDebug) {
		severity, text := parseLine(line)
		w.log.Debug(text, "severity", severity, "source", "memberlist")
	}
	return len(line), nil
}

func isNoise(line []byte) bool {
	for _, n := range noise {
		if bytes.Contains(line, []byte(n)) {
			return true
		}
	}
	return false
}

func parseLine(line []byte) (severity, text string) {
	severity, text = "info", string(bytes.TrimSpace(line))
	if rest, ok := strings.CutPrefix(text, "["); ok {
		if level, rest, ok := strings.Cut(rest, "] "); ok {
			text = rest
			switch level {
			case "DEBUG":
				severity = "debug"
			case "WARN":
				severity = "warn"
			case "ERR", "ERROR":
				severity = "error"
			}
		}
	}
	return severity, strings.TrimPrefix(text, "memberlist: ")
}
