package gossip

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// libraryLogger passes memberlist's lines on to l at debug: what matters to an
// operator this package logs itself. The library's own level becomes the
// attribute "severity". Lines about messages that are no gossip, and about probes that only TCP answered, are
// counted, too, and one of each a minute becomes a warning.
func libraryLogger(l *slog.Logger, counts *libraryCounts) *log.Logger {
	return log.New(&libraryLines{log: l, counts: counts}, "", 0)
}

// libraryCounts counts what memberlist tells in its log alone.
type libraryCounts struct {
	malformed atomic.Uint64 // messages that it could not read
	tcpOnly   atomic.Uint64 // probes that were answered over TCP, not over UDP
}

type libraryLines struct {
	log    *slog.Logger
	counts *libraryCounts
	warned atomic.Int64 // when of malformed messages, in Unix seconds
	secret atomic.Int64 // when of messages that cannot be decrypted
	udp    struct {
		sync.Mutex
		since  int64 // Unix seconds
		probes int   // that only TCP answered, in the minute since then
	}
}

// tcpOnly is what memberlist's line about a probe that only TCP answered says.
var tcpOnly = []byte("over TCP but UDP probes failed")

// fewProbes is how many such probes there may be in a minute without a warning: packets are lost now and then.
const fewProbes = 5

// noise is what memberlist's lines about messages that it cannot read say.
var noise = []string{
	"not supported", "invalid msgType", "Failed to decode", "missing message type", "invalid checksum",
	"truncated", "decompress", "failed to receive", "unacceptable label", "stream label header",
}

// undecrypted is what its lines about messages say of which one side has not the other's key.
var undecrypted = []string{"Decrypt packet failed", "not encrypted", "could decrypt", "is encrypted"}

// quietNoise is how long nothing is said of noise once it was.
const quietNoise = 60 // seconds

// Write takes one line of the form "[WARN] memberlist: text". memberlist may hold
// its lock, so it returns at once when debug is off.
func (w *libraryLines) Write(line []byte) (int, error) {
	switch {
	case hasAny(line, undecrypted):
		w.counts.malformed.Add(1)
		w.warn(&w.secret, line, "gossip cannot be decrypted: secret or keyring differs; give all nodes the same --secret-file and --gossip-keyring")
	case hasAny(line, noise):
		w.counts.malformed.Add(1)
		w.warn(&w.warned, line, "something that is no gossip comes to the gossip port")
	}
	if bytes.Contains(line, tcpOnly) {
		w.counts.tcpOnly.Add(1)
		w.countProbe(line, time.Now().Unix())
	}
	if w.log.Enabled(context.Background(), slog.LevelDebug) {
		severity, text := parseLine(line)
		w.log.Debug(text, "severity", severity, "source", "memberlist")
	}
	return len(line), nil
}

// countProbe warns of the probe after fewProbes in a minute.
func (w *libraryLines) countProbe(line []byte, now int64) {
	w.udp.Lock()
	defer w.udp.Unlock()
	if now-w.udp.since >= quietNoise {
		w.udp.since, w.udp.probes = now, 0
	}
	if w.udp.probes++; w.udp.probes == fewProbes+1 {
		_, text := parseLine(line)
		w.log.Warn("gossip probes are answered over TCP alone: let UDP pass to the gossip port, in both directions", "detail", text)
	}
}

// warn logs the line as a warning, once in quietNoise.
func (w *libraryLines) warn(last *atomic.Int64, line []byte, text string) {
	now, before := time.Now().Unix(), last.Load()
	if now-before >= quietNoise && last.CompareAndSwap(before, now) {
		_, detail := parseLine(line)
		w.log.Warn(text, "detail", detail)
	}
}

func hasAny(line []byte, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return bytes.Contains(line, []byte(part)) })
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
