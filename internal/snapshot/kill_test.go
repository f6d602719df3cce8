package snapshot

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestKill kills a process that writes one snapshot after the other: the next process gets the
// directory, and in it a whole snapshot, no older than the last one that was committed.
func TestKill(t *testing.T) {
	const wanted = "SNAPSHOT_TEST_DIRECTORY"
	if path := os.Getenv(wanted); path != "" {
		writeForever(t, path)
	}
	if os.Getenv("SLUICE_PROCESSES") == "" {
		t.Skip("runs processes: make test-cluster")
	}
	path := t.TempDir()
	for kill := range 20 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestKill$")
		cmd.Env = append(os.Environ(), wanted+"="+path)
		out, err := cmd.StdoutPipe()
		do(t, err)
		do(t, cmd.Start())
		committed := 0
		lines := bufio.NewScanner(out)
		for range kill + 1 {
			if !lines.Scan() {
				t.Fatal("the process ended")
			}
			if _, err := fmt.Sscan(lines.Text(), &committed); err != nil {
				t.Fatalf("%q", lines.Text())
			}
		}
		do(t, cmd.Process.Kill())
		for lines.Scan() { // what it still said before it died
			fmt.Sscan(lines.Text(), &committed)
		}
		cmd.Wait()

		d, err := Open(path)
		do(t, err)
		c := example()
		r, err := d.Read(c.want())
		do(t, err)
		got, err := read(r)
		do(t, err)
		do(t, r.Close())
		do(t, d.Close())
		if n := len(got.Parts[0].Images[0].Data); n != committed && n != committed+1 {
			t.Fatalf("found number %d after %d was committed", n, committed)
		}
		if _, err := os.Lstat(filepath.Join(path, tempName)); err == nil {
			t.Error("the temporary file was left")
		}
	}
}

// writeForever says the number of each snapshot once it is committed.
func writeForever(t *testing.T, path string) {
	d := openDir(t, path)
	for n := 2; ; n++ {
		c := example()
		c.Parts[0].Images[0].Data = make([]byte, n) // two counters at least
		save(t, d, c)
		fmt.Println(n)
	}
}
