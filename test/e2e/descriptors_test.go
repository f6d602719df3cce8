package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// TestFewDescriptors fills a node that may open 256 files with 500 clients of another address. The other node is restarted
// meanwhile: the two must reach each other, and operators the node.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	one := process.Start(t, process.Config{Name: "one", Descriptors: 256})
	two := process.Start(t, process.Config{Name: "two", Join: []string{one.Gossip}})
	if !strings.Contains(one.Log.String(), "few file descriptors") {
		t.Errorf("nothing is said of the limit at the start")
	}

	from := &net.TCPAddr{IP: net.ParseIP(process.OwnHost())}
	hello := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" // and empty settings
	dial := func(addr, text string) {
		d := net.Dialer{LocalAddr: from, Timeout: 5 * time.Second}
		c, err := d.Dial("tcp", addr)
		if err != nil {
			return // the kernel's queue is full
		}
		t.Cleanup(func() { c.Close() })
		c.Write([]byte(text)) // the node may have hung up
	}
	var clients sync.WaitGroup
	for i := range 500 {
		clients.Go(func() {
			if i%2 == 0 {
				dial(one.GRPC, hello)
			} else {
				dial(one.HTTP, "GET /healthz HTTP/1.1\r\nHost: one\r\n\r\n")
			}
		})
	}
	clients.Wait()
	process.Eventually(t, 10*time.Second, "clients are rejected", func() error {
		if one.Metric(`sluice_connections_rejected_total{port="grpc",reason="full"}`) == 0 {
			return errors.New("none was")
		}
		return nil
	})

	two.Stop(syscall.SIGTERM)
	two = process.Start(t, process.Config{Name: "two", Join: []string{one.Gossip}})
	sources := map[sluicev1.Source]int{}
	for _, n := range []*process.Node{one, two} {
		for i := range 50 {
			res, err := n.API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck(fmt.Sprintf("k%d", i))}})
			if err != nil {
				t.Fatalf("%s: %v", n.Name, err)
			}
			sources[res.Decisions[0].Source]++
		}
	}
	if sources[sluicev1.Source_SOURCE_OWNED]+sources[sluicev1.Source_SOURCE_FORWARDED] != 100 || sources[sluicev1.Source_SOURCE_FORWARDED] == 0 {
		t.Errorf("answers by source: %v, want held and forwarded alone", sources)
	}
	for _, name := range []string{"health", "members"} {
		if code, out := command(name, "--addr", one.GRPC); code != 0 {
			t.Errorf("sluice %s: %d: %s", name, code, out)
		}
	}
	one.Metric("go_goroutines") // it answers
}
