package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// sluice is the program under test, chromium the browser, empty if there is none.
var sluice, chromium string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		chromium = os.Getenv("SLUICE_CHROMIUM")
		if chromium == "" || chromium == "required" {
			for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
				if at, err := exec.LookPath(name); err == nil {
					chromium = at
					break
				}
			}
		}
		if chromium == "required" {
			fmt.Fprintln(os.Stderr, "SLUICE_CHROMIUM=required, and there is no Chromium")
			return 1
		}
		dir, err := os.MkdirTemp("", "sluice-console-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		sluice = filepath.Join(dir, "sluice")
		build := exec.Command("go", "build", "-o", sluice, "./cmd/sluice")
		build.Dir, build.Stderr = "../../..", os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "building the binary:", err)
			return 1
		}
		return m.Run()
	}())
}

// process is one running node.
type process struct {
	name, http, grpc string
	cmd              *exec.Cmd
	log              bytes.Buffer
}

// hosts gives every node of a run an address of its own.
var hosts atomic.Uint32

// startCluster runs n1, n2 and n3 with testdata/shop.yaml and waits until they are ready.
func startCluster(t *testing.T, args ...string) []*process {
	t.Helper()
	return startClusterAt(t, ownHosts(), args...)
}

const clusterNodes = 3 // of a cluster

// ownHosts returns addresses for a cluster.
func ownHosts() (list []string) {
	for range clusterNodes {
		list = append(list, fmt.Sprintf("127.%d.77.%d", 60+os.Getpid()%100, hosts.Add(1)))
	}
	return list
}

// startClusterAt is startCluster with these addresses.
func startClusterAt(t *testing.T, hosts []string, args ...string) []*process {
	t.Helper()
	var list []*process
	var join []string
	for _, host := range hosts {
		join = append(join, host+":7463")
	}
	for i, host := range hosts {
		p := &process{name: "n" + strconv.Itoa(i+1), http: host + ":7461", grpc: host + ":7460"}
		p.cmd = exec.Command(sluice, append([]string{"serve", "--name", p.name, "--bind", host, "--join", strings.Join(join, ","), "--bootstrap-expect", strconv.Itoa(clusterNodes), "--rules", "testdata/shop.yaml"}, args...)...)
		p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.cmd.Process.Kill()
			p.cmd.Wait()
			if t.Failed() {
				t.Logf("%s:\n%s", p.name, p.log.String())
			}
		})
		list = append(list, p)
	}
	for _, p := range list {
		until(t, p.name+" is ready", 20*time.Second, func() bool {
			res, err := http.Get("http://" + p.http + "/readyz")
			if err != nil {
				return false
			}
			res.Body.Close()
			return res.StatusCode == http.StatusOK
		})
	}
	return list
}

// until waits for a condition.
func until(t *testing.T, what string, most time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain: %s", most, what)
		}
	}
}

type entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// check asks one check and reports whether it was allowed.
func (p *process) check(token string, descriptor ...entry) (bool, error) {
	body, err := json.Marshal(map[string]any{"domain": "shop", "descriptor": descriptor})
	if err != nil {
		return false, err
	}
	req, err := http.NewRequest("POST", "http://"+p.http+"/v1/check?deny=429", bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusTooManyRequests {
		return false, fmt.Errorf("%s: %s", p.name, res.Status)
	}
	return res.StatusCode == http.StatusOK, nil
}

// token makes a token and returns it with its digest.
func token(t *testing.T) (secret, digest string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	out, err := exec.Command(sluice, "token", "--out", file).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(out)) {
		if strings.HasPrefix(field, "sha256:") {
			digest = field
		}
	}
	if digest == "" {
		t.Fatalf("no digest in %q", out)
	}
	return strings.TrimSpace(string(data)), digest
}

// callers writes the callers file and returns its path and the tokens by name.
func callers(t *testing.T) (file string, tokens map[string]string) {
	t.Helper()
	data, err := os.ReadFile("testdata/callers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	tokens = make(map[string]string)
	for _, name := range []string{"operator", "viewer", "tenant"} {
		secret, digest := token(t)
		tokens[name] = secret
		text = strings.Replace(text, strings.ToUpper(name), digest, 1)
	}
	file = filepath.Join(t.TempDir(), "callers.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, tokens
}
