package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// TestRegionList: a region that is stopped is taken out of the lists of the others while they run, and put into them again; one that runs
// is not.
func TestRegionList(t *testing.T) {
	process.OnlyLong(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(globalRules), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFarRegions(t, path, 10*time.Millisecond, "eu", "us", "ap")
	f.waitStarted()
	promote := func(to, home, from string) {
		t.Helper()
		if out, err := exec.Command(process.Binary, "regions", "promote", to, "--home", home, "--addr", f.nodes[from][0].GRPC).CombinedOutput(); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		f.waitDecides(12*time.Second, to, home)
	}
	others := []string{"eu", "us"}
	take := func(names ...string) {
		for _, r := range others {
			f.list(r, names...)
		}
	}
	listed := func(want bool) error {
		for _, r := range others {
			for _, n := range f.nodes[r] {
				if found, _, err := regionsOf(n); err != nil || (found["ap"] != nil) != want {
					return fmt.Errorf("%s: ap is in the list: %v, %v", n.Name, found["ap"] != nil, err)
				}
			}
		}
		return nil
	}
	take("eu", "us")
	// Nothing tells that a file was rejected but the log, so this waits for two readings.
	<-time.After(5 * time.Second)
	if err := listed(true); err != nil {
		t.Errorf("ap runs: %v", err)
	}
	promote("us", "ap", "ap")
	for _, n := range f.nodes["ap"] {
		n.Stop(syscall.SIGTERM)
	}
	process.Eventually(t, 20*time.Second, "the others do not have ap", func() error { return listed(false) })
	for _, r := range others {
		f.waitDecides(5*time.Second, r, r)
	}
	f.waitDecides(10*time.Second, "us", "ap")
	take("eu", "us", "ap")
	process.Eventually(t, 15*time.Second, "the others have ap again", func() error { return listed(true) })
	f.waitDecides(5*time.Second, "us", "us")
}
