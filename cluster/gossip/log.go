package gossip

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
)

// libraryLines passes memberlist's log lines on to log at debug, with the library's level as the attribute "severity". Lines about
// messages that are not gossip, and about probes that only TCP answered, are counted, and logged as warnings once a minute.
type libraryLines struct {
	log       *slog.Logger
	quiet     *loglimit.Limiter // of warnings about messages
	malformed atomic.Uint64     // messages that it could not read
	tcpOnly   atomic.Uint64     // probes that were answered over TCP, not over UDP
	udp       struct {
		sync.Mutex
		since  int64 // Unix seconds
		probes int   // that only TCP answered, in the minute since then
	}
}

// tcpOnly is in memberlist's line about a probe that only TCP answered.
var tcpOnly = []byte("over TCP but UDP probes failed")

// fewProbes is the number of such probes in a minute without a warning: packets get lost now and then.
const fewProbes = 5

// noise is in memberlist's lines about messages that it cannot read.
var noise = []string{
	"not supported", "invalid msgType", "Failed to decode", "missing message type", "invalid checksum",
	"truncated", "decompress", "failed to receive", "unacceptable label", "stream label header",
}

// undecrypted is in its lines about messages that it cannot decrypt.
var undecrypted = []string{"Decrypt packet failed", "not encrypted", "could decrypt", "is encrypted"}

// quietNoise is the time in which fewProbes may fail, and the least between two warnings about them.
const quietNoise = 60 // seconds

// Write takes one line of the form "[WARN] memberlist: text". memberlist may hold its lock.
func (w *libraryLines) Write(line []byte) (int, error) {
	switch {
	case hasAny(line, undecrypted):
		w.malformed.Add(1)
		w.warn(line, "gossip cannot be decrypted: secret or keyring differs, or --join names a port that is not for gossip; "+
			"give all nodes the same --secret-file and --gossip-keyring")
	case hasAny(line, noise):
		w.malformed.Add(1)
		w.warn(line, "a message on the gossip port is not gossip")
	}
	if bytes.Contains(line, tcpOnly) {
		w.tcpOnly.Add(1)
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

// warn logs the line as a warning, each text once a minute.
func (w *libraryLines) warn(line []byte, text string) {
	if w.quiet.Allow(time.Now(), text) {
		_, detail := parseLine(line)
		w.log.Warn(text, "detail", detail)
	}
}

func hasAny(line []byte, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return bytes.Contains(line, []byte(part)) })
}

var severities = map[string]string{"DEBUG": "debug", "WARN": "warn", "ERR": "error", "ERROR": "error"}

func parseLine(line []byte) (severity, text string) {
	text = string(bytes.TrimSpace(line))
	if level, rest, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(level, "[") {
		severity, text = severities[level[1:]], rest
	}
	return cmp.Or(severity, "info"), strings.TrimPrefix(text, "memberlist: ")
}
