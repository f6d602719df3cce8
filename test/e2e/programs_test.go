package e2e

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/test/process"
)

// TestGoPrograms runs the programs of examples/go against three nodes, as their users would.
func TestGoPrograms(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(filepath.Join(repository, "examples/go/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	nodes := process.Cluster(t, 3, process.RulesOf(t, string(rules)))
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "./examples/go/...")
	build.Dir = repository
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	command := func(name, listen string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name))
		cmd.Env = append(os.Environ(), "SLUICE="+nodes[0].GRPC, "LISTEN="+listen)
		return cmd
	}
	output := func(name string) string {
		out, err := command(name, "").Output()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return string(out)
	}
	// serve starts a server and returns its address once it listens.
	serve := func(name string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		l.Close()
		cmd := command(name, addr)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		process.Eventually(t, time.Minute, name+" listens", func() error {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				c.Close()
			}
			return err
		})
		return addr
	}

	users := serve("users")
	for _, user := range []string{"ann", "", "bob"} {
		slow := false
		for i := range 4 {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+users+"/", nil)
			if user != "" {
				req.Header.Set("X-User", user)
			}
			asked := time.Now()
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			// A check whose response was lost may be charged twice; none is given up sooner.
			slow = slow || time.Since(asked) > 200*time.Millisecond
			if want := map[bool]int{true: 200, false: 429}[i < 3]; res.StatusCode != want && (!slow || i >= 3) {
				t.Errorf("request %d of %q: %s, %v", i, user, res.Status, res.Header)
			}
		}
	}

	logins := "http://" + serve("login") + "/"
	var guesses atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			res, err := http.PostForm(logins, url.Values{"user": {"ann"}, "password": {"guess"}})
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
			if res.StatusCode == http.StatusUnauthorized {
				guesses.Add(1)
			}
		})
	}
	if all.Wait(); guesses.Load() != 3 {
		t.Errorf("%d of 100 parallel guesses against a limit of 3", guesses.Load())
	}
	for range 10 { // a right password costs nothing
		res, err := http.PostForm(logins, url.Values{"user": {"bob"}, "password": {"secret"}})
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != http.StatusOK {
			t.Errorf("login: %s", res.Status)
		}
	}

	if got := output("worker"); strings.Count(got, "done: ") != 5 {
		t.Errorf("worker:\n%s", got)
	}

	conn, err := grpc.NewClient(serve("tenants"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(tenant string) error {
		ctx := context.Background()
		if tenant != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-tenant", tenant)
		}
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err
	}
	passed := map[string]int{}
	for _, tenant := range []string{"a", "b"} {
		for range 6 {
			if err := call(tenant); err == nil {
				passed[tenant]++
			} else if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("tenant %s: %v", tenant, err)
			}
		}
	}
	if passed["a"] != 5 || passed["b"] != 3 || call("") == nil {
		t.Errorf("calls that passed: %v; want 5 and then 3 of all 8, and none without a tenant", passed)
	}

	want := "allowed: true\ncheck 0, limit hourly: 1 of 3 left, again in "
	if got := output("batch"); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "allowed: false\n") {
		t.Errorf("batch:\n%s", got)
	}
}
