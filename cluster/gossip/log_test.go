package gossip

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// Probes that only TCP answers are counted, and warned of when there are more than a few in a minute.
func TestProbesOverTCPAlone(t *testing.T) {
	var text strings.Builder
	l := &libraryLines{log: slog.New(slog.NewTextHandler(&text, nil))}
	line := func() {
		fmt.Fprint(l, "[WARN] memberlist: Was able to connect to b over TCP but UDP probes failed, network may be misconfigured\n")
	}
	for range fewProbes {
		line()
	}
	if text.Len() > 0 {
		t.Errorf("a few are logged: %s", &text)
	}
	for range 100 {
		line()
	}
	if n := l.tcpOnly.Load(); n != fewProbes+100 {
		t.Errorf("%d are counted", n)
	}
	if n := strings.Count(text.String(), "let UDP pass"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &text)
	}
	l.countProbe(nil, l.udp.since+quietNoise-1)
	if n := strings.Count(text.String(), "let UDP pass"); n != 1 {
		t.Errorf("a second line within the minute")
	}
	for range fewProbes + 1 {
		l.countProbe(nil, l.udp.since+2*quietNoise) // a new minute each
	}
	if n := strings.Count(text.String(), "let UDP pass"); n != 1 {
		t.Errorf("one each two minutes is logged")
	}
}
