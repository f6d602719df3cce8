package gossip

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"strings"
)

// libraryLogger passes memberlist's lines on to l at debug: what matters to an
// operator this package logs itself. The library's own level becomes the
// attribute "severity".
func libraryLogger(l *slog.Logger) *log.Logger {
	return log.New(libraryLines{l}, "", 0)
}

type libraryLines struct{ log *slog.Logger }

// Write takes one line of the form "[WARN] memberlist: text". memberlist may hold
// its lock, so it returns at once when debug is off.
func (w libraryLines) Write(line []byte) (int, error) {
	if w.log.Enabled(context.Background(), slog.LevelDebug) {
		severity, text := parseLine(line)
		w.log.Debug(text, "severity", severity, "source", "memberlist")
	}
	return len(line), nil
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
