package e2e

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/internal/snapshot"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/test/process"
)

// ambiguous returns how many checks the nodes have sent to each other without a response.
func ambiguous(nodes []*process.Node) (count int64) {
	for _, n := range nodes {
		count += int64(n.Metric("sluice_forward_ambiguous_total"))
	}
	return count
}

// exact fails t unless r has no errors and no limit was exceeded, and each was used up but for checks that nodes sent to each other
// and whose response was lost: these may have been charged twice (docs/internals/consistency.md).
func exact(t *testing.T, r *audit.Report, nodes []*process.Node) {
	t.Helper()
	twice := ambiguous(nodes)
	if r.FinalErrors > 0 || r.Over.Units > 0 || r.Under.Units > twice {
		t.Errorf("%d errors %v, over quota %+v, under %+v, of which %d may have been charged twice: %+v", r.FinalErrors, r.Errors, r.Over, r.Under, twice, r.Violations)
	}
}

// TestSnapshotOfOne restarts a node that is alone, twice: its counters are there, as old as they are.
func TestSnapshotOfOne(t *testing.T) {
	t.Parallel()
	c := process.Config{Name: "n1", Args: []string{"--data-dir", filepath.Join(t.TempDir(), "data")}}
	n := process.Start(t, c)
	// The time of the first and of the last charge, each between two readings of the clock.
	first := time.Now()
	for range 90 {
		if d := n.Spend(sluicev1.Verb_VERB_CHECK, "k"); !d.Allowed {
			t.Fatalf("denied: %v", d)
		}
	}
	last := time.Now()
	for range 2 {
		if took, code := n.Stop(syscall.SIGTERM); code != 0 || took > 5*time.Second {
			t.Fatalf("exit code %d after %v", code, took)
		}
		n = process.Start(t, c)
		before := time.Now()
		d := n.Spend(sluicev1.Verb_VERB_READ, "k")
		least, most := 10+int64(before.Sub(last)/time.Second), 11+int64(time.Since(first)/time.Second)
		if d.GetRemaining() < least || d.GetRemaining() > most {
			t.Errorf("%d remain, want %d to %d", d.GetRemaining(), least, most)
		}
		if restored, fresh := n.Metric("sluice_snapshot_restored_counters"), n.Metric("sluice_takeovers_fresh_total"); restored != 1 || fresh != 0 {
			t.Errorf("%v counters were read, %v partitions begin afresh", restored, fresh)
		}
	}
}

// TestSnapshotRejected gives a node snapshots that it must not use: each is set aside, the log says why
// and where, and the node starts without.
func TestSnapshotRejected(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("x", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	// whole is what a node has written; secret names the file with its cluster's secret, if any.
	whole := func(t *testing.T, dir string, args ...string) []byte {
		t.Helper()
		n := process.Start(t, process.Config{Name: "n1", Args: append(args, "--data-dir", dir)})
		n.Spend(sluicev1.Verb_VERB_CHECK, "k")
		n.Stop(syscall.SIGTERM)
		data, err := os.ReadFile(filepath.Join(dir, "counters.snapshot"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	put := func(data []byte, n uint32) {
		for i := range 4 {
			data[i] = byte(n >> (8 * i))
		}
	}
	versioned := func(data []byte, version uint32) {
		put(data[8:], version)
		put(data[12:], crc32.Checksum(data[:12], crc32.MakeTable(crc32.Castagnoli)))
	}
	for _, c := range []struct {
		name, reason, says string
		spoil              func(t *testing.T, dir string) []byte
	}{
		{"torn", "damaged", "it ends before it should", func(t *testing.T, dir string) []byte {
			data := whole(t, dir)
			return data[:len(data)/2]
		}},
		{"changed", "damaged", "checksum", func(t *testing.T, dir string) []byte {
			data := whole(t, dir)
			data[len(data)-1] ^= 1 // of the last record's checksum; the middle may be a length, which is another error
			return data
		}},
		{"of another cluster", "foreign", "secret", func(t *testing.T, dir string) []byte { return whole(t, dir, "--secret-file", secret) }},
		{"of an older format", "older", "format version 0", func(t *testing.T, dir string) []byte {
			data := whole(t, dir)
			versioned(data, 0)
			return data
		}},
		{"of a newer format", "newer", "format version 99", func(t *testing.T, dir string) []byte {
			data := whole(t, dir)
			versioned(data, 99)
			return data
		}},
		{"of the future", "future", "ahead of this machine's clock", func(t *testing.T, dir string) []byte {
			return fromTheFuture(t, dir)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			data := c.spoil(t, dir)
			if err := os.WriteFile(filepath.Join(dir, "counters.snapshot"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			n := process.Start(t, process.Config{Name: "n1", Args: []string{"--data-dir", dir}})
			aside, err := filepath.Glob(filepath.Join(dir, "counters.snapshot.rejected-*"))
			if err != nil || len(aside) != 1 {
				t.Fatalf("set aside: %v, %v", aside, err)
			}
			kept, err := os.ReadFile(aside[0])
			if err != nil || string(kept) != string(data) {
				t.Errorf("%s is not the file that was rejected: %v", aside[0], err)
			}
			line := logLine(n.Log.String(), "snapshot rejected")
			for _, want := range []string{"level=WARN", "reason=" + c.reason, c.says, aside[0]} {
				if !strings.Contains(line, want) {
					t.Errorf("no %q in: %s", want, line)
				}
			}
			if got := n.Metric("sluice_snapshots_rejected_total"); got != 1 {
				t.Errorf("%v are counted as rejected", got)
			}
			if d := n.Spend(sluicev1.Verb_VERB_CHECK, "k"); d.GetRemaining() != 99 {
				t.Errorf("%d remain of a counter that should be new", d.GetRemaining())
			}
			n.Stop(syscall.SIGTERM)
			n = process.Start(t, process.Config{Name: "n1", Args: []string{"--data-dir", dir}})
			if got := n.Metric("sluice_snapshot_restored_counters"); got != 1 {
				t.Errorf("%v counters were read after that", got)
			}
		})
	}
}

// fromTheFuture returns what a node whose clock is an hour ahead would write.
func fromTheFuture(t *testing.T, dir string) []byte {
	t.Helper()
	d, err := snapshot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	fingerprint, err := limiter.Fingerprint([]byte("sluice without a secret: for trying it out, not for others' traffic"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Create(snapshot.Header{
		Placement: ring.Placement, Fingerprint: [16]byte(fingerprint), Name: "n1", Partitions: ring.DefaultPartitions,
		Begun: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "counters.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// logLine returns the first line of log that has text.
func logLine(log, text string) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// TestDataDirWrongStarts wants a node that cannot use its data directory to end and say why.
func TestDataDirWrongStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	process.Start(t, process.Config{Name: "n1", Args: []string{"--data-dir", dir}})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"in use", []string{"--data-dir", dir}, 1, []string{"--data-dir", dir, "another process uses it"}},
		{"a file", []string{"--data-dir", file}, 1, []string{"--data-dir", file, "not a directory"}},
		{"negative interval", []string{"--data-dir", dir, "--snapshot-interval", "-1s"}, 2, []string{"--snapshot-interval", "-1s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := process.Launch(t, process.Config{Name: "n2", Args: c.args})
			select {
			case <-n.Done:
			case <-time.After(10 * time.Second):
				t.Fatal("it runs on")
			}
			if code := n.Cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(n.Log.String(), want) {
					t.Errorf("no %q in: %s", want, n.Log.String())
				}
			}
		})
	}
}

// TestSnapshotCannotBeWritten: a node whose disk fails goes on, counts it and says so.
func TestSnapshotCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	n := process.Start(t, process.Config{Name: "n1", Args: []string{"--data-dir", dir, "--snapshot-interval", "100ms"}})
	process.Eventually(t, 5*time.Second, "a snapshot is written", func() error {
		if n.Metric("sluice_snapshots_total") == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	// A directory with something in it, where the next one is to be put. The node may be faster with another file.
	process.Eventually(t, 5*time.Second, "a directory is in its place", func() error {
		return errors.Join(os.RemoveAll(filepath.Join(dir, "counters.snapshot")), os.MkdirAll(filepath.Join(dir, "counters.snapshot", "x"), 0o700))
	})
	n.WaitLog("no snapshot was written", 5*time.Second)
	if n.Metric("sluice_snapshots_failed_total") == 0 {
		t.Error("it is not counted")
	}
	if d := n.Spend(sluicev1.Verb_VERB_CHECK, "k"); !d.Allowed {
		t.Errorf("%v", d)
	}
	if _, code := n.Stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
