package proxies

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cluster is three nodes at one host, at the ports of `sluice demo`.
type cluster struct {
	t           *testing.T
	host, rules string
	nodes       [3]*process

	mu struct {
		sync.Mutex
		outages []outage
	}
}

// outage is a time in which a node does not answer. until is zero while it lasts.
type outage struct {
	node        int
	from, until time.Time
}

// startCluster starts it by the rules of an example, and waits until all are ready.
func startCluster(t *testing.T, host, rules string) *cluster {
	c := &cluster{t: t, host: host, rules: filepath.Join(root, "examples", rules)}
	for i := range c.nodes {
		c.start(i)
	}
	return c
}

// start starts node i, which joins those that are there, and waits until it is ready.
func (c *cluster) start(i int) {
	c.t.Helper()
	port := 7460 + 10*i
	args := []string{"serve", "--name", fmt.Sprint("n", i+1), "--bind", c.host, "--rules", c.rules}
	for j, flag := range []string{"grpc", "http", "peer", "gossip"} {
		args = append(args, "--"+flag+"-port", fmt.Sprint(port+j))
	}
	for j := range c.nodes {
		if j != i && c.nodes[j] != nil {
			args = append(args, "--join", fmt.Sprintf("%s:%d", c.host, 7463+10*j))
		}
	}
	c.nodes[i] = start(c.t, binary, args...)
	c.nodes[i].await("ready", func() bool { return ready(c.host, port+1) })
}

// signal sends node i a signal, which begins an outage of it, or with SIGCONT ends one.
func (c *cluster) signal(i int, s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s != syscall.SIGCONT {
		c.mu.outages = append(c.mu.outages, outage{node: i, from: time.Now()})
	}
	if err := c.nodes[i].cmd.Process.Signal(s); err != nil {
		c.t.Error(err)
	}
	if s == syscall.SIGCONT {
		c.endLocked(i)
	}
}

func (c *cluster) endLocked(i int) {
	for j := range c.mu.outages {
		if o := &c.mu.outages[j]; o.node == i && o.until.IsZero() {
			o.until = time.Now()
		}
	}
}

// wasOut reports whether node i did not answer at some time between from and until.
func (c *cluster) wasOut(i int, from, until time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.mu.outages {
		if o.node == i && o.from.Before(until) && (o.until.IsZero() || o.until.After(from)) {
			return true
		}
	}
	return false
}

// harm kills one node and starts it again, and then stops another for four seconds. There is a majority at every moment.
func (c *cluster) harm() {
	wait := func(d time.Duration) { <-time.After(d) } // what is shown is what the load meets meanwhile
	wait(3 * time.Second)
	c.signal(2, syscall.SIGKILL)
	<-c.nodes[2].done
	wait(3 * time.Second)
	c.start(2)
	c.mu.Lock()
	c.endLocked(2)
	c.mu.Unlock()
	wait(2 * time.Second)
	c.signal(1, syscall.SIGSTOP)
	wait(4 * time.Second)
	c.signal(1, syscall.SIGCONT)
	wait(3 * time.Second)
}

// The load: as many requests a second in all, of so many clients. Each client asks for /login as one in logins.
const (
	rate    = 300
	clients = 5
	logins  = 6
	// Of the rules: what a client has in a minute.
	perMinute, loginsPerMinute = 300, 5
)

// outcome is what became of one request.
type outcome struct {
	login bool
	who   int
	began time.Time
	took  time.Duration
	// passed: it came through to the service; limited: by a limit that was looked at, and not because nobody could be asked.
	passed, limited bool
	// dead: it was rejected because the node that was asked about it was dead or hung, and no other was asked.
	dead bool
	// failed is why it was rejected otherwise, though no limit denied it.
	failed string
}

// underFire asks with the load while c is harmed, and returns what became of all requests.
func underFire(c *cluster, ask func(who int, login bool) outcome) (all []outcome) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 50*time.Second)
	defer cancel()
	go func() {
		c.harm()
		cancel()
	}()
	var mu sync.Mutex
	var running sync.WaitGroup
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		who, login := i%clients, i/clients%logins == 0
		running.Go(func() {
			began := time.Now()
			o := ask(who, login)
			o.who, o.login, o.began, o.took = who, login, began, time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, o)
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	running.Wait()
	return all
}

// judge fails the test if a request passed unlimited, or failed.
func judge(t *testing.T, all []outcome) {
	t.Helper()
	passed, denied, failed := 0, 0, 0
	var slowest time.Duration
	windows := map[[2]int64]bool{} // of each client
	var byClient, loginsOf [clients]int
	for _, o := range all {
		slowest = max(slowest, o.took)
		windows[[2]int64{int64(o.who), o.began.Unix() / 60}] = true
		windows[[2]int64{int64(o.who), o.began.Add(o.took).Unix() / 60}] = true
		switch {
		case o.failed != "":
			if failed++; failed <= 10 {
				t.Errorf("a request failed after %v: %s", o.took, o.failed)
			}
		case o.passed && !o.limited:
			t.Errorf("a request passed unlimited after %v: %+v", o.took, o)
		case o.passed:
			if passed++; o.login {
				loginsOf[o.who]++
			} else {
				byClient[o.who]++
			}
		case o.dead:
		default:
			denied++
		}
	}
	t.Logf("%d requests: %d passed, %d denied, %d failed; the slowest took %v; of each client %v, and logins %v",
		len(all), passed, denied, failed, slowest, byClient, loginsOf)
	for who := range clients {
		n := 0
		for w := range windows {
			if w[0] == int64(who) {
				n++
			}
		}
		// All rules have a window of each minute, n together. A login is asked by per-client too, and per-client admits besides what a
		// share of one of three nodes and the 50 ms before a crash admit (docs/internals/consistency.md).
		if most := perMinute*n + perMinute/3; byClient[who]+loginsOf[who] > most {
			t.Errorf("client %d: %d passed, of %d at most", who, byClient[who]+loginsOf[who], most)
		}
		if most := loginsPerMinute * n; loginsOf[who] > most {
			t.Errorf("client %d: %d logins passed, of %d at most", who, loginsOf[who], most)
		}
	}
	if passed < clients*perMinute*9/10 || denied < passed/4 || len(all) < 10*rate {
		t.Errorf("%d requests, %d passed and %d denied: that shows little", len(all), passed, denied)
	}
}

// askProxy asks a proxy at port 10000, of a client with an address of its own. What passes without saying what is left was
// not limited.
func askProxy(t *testing.T, host string) func(who int, login bool) outcome {
	var of [clients]http.Client
	for i := range of {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(10+i))}}
		transport := &http.Transport{DialContext: from.DialContext, MaxIdleConnsPerHost: rate}
		t.Cleanup(transport.CloseIdleConnections)
		of[i] = http.Client{Transport: transport, Timeout: 30 * time.Second}
	}
	return func(who int, login bool) outcome {
		method, path := http.MethodGet, "/"
		if login {
			method, path = http.MethodPost, "/login"
		}
		req, err := http.NewRequest(method, "http://"+host+":10000"+path, nil)
		if err != nil {
			return outcome{failed: err.Error()}
		}
		res, err := of[who].Do(req)
		if err != nil {
			return outcome{failed: err.Error()}
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return outcome{failed: err.Error()}
		}
		limited := strings.Contains(res.Header.Get("RateLimit"), "per-client")
		switch {
		case res.StatusCode == http.StatusOK:
			return outcome{passed: true, limited: limited}
		case res.StatusCode == http.StatusTooManyRequests && (limited || res.Header.Get("RateLimit-Policy") != ""):
			return outcome{limited: true}
		}
		return outcome{failed: res.Status}
	}
}

func TestNginxUnderFire(t *testing.T) {
	host := newHost(t)
	c := startCluster(t, host, "nginx/rules")
	startNginx(t, host)
	judge(t, underFire(c, askProxy(t, host)))
}

func TestCaddyUnderFire(t *testing.T) {
	host := newHost(t)
	c := startCluster(t, host, "caddy/rules")
	runCaddy(t, host, "", "")
	judge(t, underFire(c, askProxy(t, host)))
}
