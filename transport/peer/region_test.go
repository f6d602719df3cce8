package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// of is config of a node in a region whose list has eu and us.
func (n *network) of(region, name string) Config {
	c := n.config(name)
	c.Region, c.HasRegion = region, func(r string) bool { return r == "eu" || r == "us" }
	return c
}

// relayed is costing of records that are Relay.
func relayed(costs ...int64) []check.Record {
	records := costing(costs...)
	for i := range records {
		records[i].Relay = true
	}
	return records
}

// TestRegionMayOnlyRelay: a node of another region may send records that are Relay and requests about regions, and nothing else.
func TestRegionMayOnlyRelay(t *testing.T) {
	network := newNetwork()
	b := network.of("us", "b")
	delivered := make(chan message.Envelope, 1)
	b.ControlQueue = queueFunc(func(e message.Envelope) { delivered <- e })
	asked := make(chan message.Body, 1)
	b.Answer = func(_ context.Context, request message.Body) message.Body {
		asked <- request
		return &message.RegionResponse{ClusterID: "b-0", Clock: 5}
	}
	server, _ := network.serve(t, "b:1", b, handlerFunc(echo))
	a := network.of("eu", "a")
	pool, addr := open(t, a), RegionAddr("us", "b:1")

	var replies [2]check.Reply
	if err := pool.Call(t.Context(), addr, relayed(3, 4), replies[:]); err != nil || replies[1].Remaining != 4 {
		t.Errorf("records to be relayed: %+v, %v", replies, err)
	}
	pool.Retain(nil)
	dialled := pool.Stats().Dialled
	if err := pool.Call(t.Context(), addr, relayed(3, 4), replies[:]); err != nil || pool.Stats().Dialled != dialled {
		t.Errorf("Retain has closed the connection to another region: %d connections, then %d, %v", dialled, pool.Stats().Dialled, err)
	}
	if err := pool.Call(t.Context(), addr, costing(3, 4), replies[:]); !errors.Is(err, check.ErrAmbiguous) {
		t.Errorf("records that are not to be relayed: %v", err)
	}
	if n := server.Stats().Malformed; n != 1 {
		t.Errorf("%d streams ended for what they sent; want 1", n)
	}

	talk, err := pool.Talk(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer talk.Close()
	if p := talk.Peer(); p != (message.Peer{Name: "b", Boot: "b-1"}) {
		t.Errorf("talks to %v", p)
	}
	for range 3 {
		answer, err := talk.Ask(t.Context(), &message.RegionRequest{})
		if r, ok := answer.(*message.RegionResponse); err != nil || !ok || r.Clock != 5 {
			t.Fatalf("a request about regions: %v, %v", answer, err)
		}
		<-asked
	}
	sent := &message.RegionMessages{From: message.Peer{Name: "eu"}, Counters: &message.RoleCounters{From: "a", Partitions: 9, Batch: message.TransferBatch{
		N: 4, Age: 3, Parts: message.Parts{{Partition: 8, Kind: message.Merge, Counters: 2, Bytes: 3}},
		Image: bucket.Image{Limits: []*bucket.Limits{tenAMinute}, Data: []byte("abc"), Counters: 2},
	}}}
	if _, err := talk.Ask(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	if got, ok := (<-asked).(*message.RegionMessages); !ok || got.Counters == nil || !got.Counters.Batch.Image.Limits[0].Equal(tenAMinute) {
		t.Errorf("counters: %+v", got)
	} else if got.Counters.Batch.Image.Limits[0] = tenAMinute; !reflect.DeepEqual(got, sent) {
		t.Errorf("counters: %+v, want %+v", got, sent)
	}
	if _, err := pool.Query(t.Context(), addr, &message.TopRequest{}); err == nil || len(asked) > 0 {
		t.Errorf("another request: %v, answered: %v", err, len(asked) > 0)
	}

	pool.Post(addr, message.Envelope{To: message.Peer{Name: "b", Boot: "b-1"}, Body: &message.Heartbeat{}})
	if err := pool.Greet(addr); err == nil || !strings.Contains(err.Error(), `"a", is of region "eu", and not of region "us"`) {
		t.Errorf("a control stream: %v", err)
	}
	if in, out := pool.Traffic("us").Bytes(); in < 500 || out < 500 {
		t.Errorf("traffic of %d bytes in and %d out", in, out)
	}
	select {
	case e := <-delivered:
		t.Errorf("delivered %v", e)
	default:
	}

	pool.Drop(addr)
	if err := pool.Call(t.Context(), addr, relayed(3, 4), replies[:]); err != nil {
		t.Errorf("after Drop: %v", err)
	}
}

// TestRegionSpeaksForItself: a node sends no messages in the name of another region than its hello has, and requests no lease for one.
func TestRegionSpeaksForItself(t *testing.T) {
	network := newNetwork()
	b := network.of("us", "b")
	b.Answer = func(context.Context, message.Body) message.Body { return &message.RegionResponse{} }
	network.serve(t, "b:1", b, handlerFunc(echo))
	pool := open(t, network.of("eu", "a"))
	for _, region := range []string{"eu", "us", "ap", ""} {
		own := region == "eu"
		_, err := pool.Query(t.Context(), RegionAddr("us", "b:1"), &message.RegionMessages{From: message.Peer{Name: region, Boot: "b-1~1"}})
		if want := fmt.Sprintf("a node of region %q sends messages of region %q", "eu", region); own != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("messages of region %q: %v; want %q", region, err, want)
		}
		leases := relayed(1)
		leases[0].Grant, leases[0].Once = true, check.HashOf(region)
		if err := pool.Call(t.Context(), RegionAddr("us", "b:1"), leases, make([]check.Reply, 1)); own != (err == nil) {
			t.Errorf("a request for a lease for region %q: %v", region, err)
		}
	}
}

type queueFunc func(message.Envelope)

func (f queueFunc) Deliver(e message.Envelope) { f(e) }

// TestKeep: the connection for records is made before the first one, and only once.
func TestKeep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		network := newNetwork()
		network.serve(t, "b:1", network.of("us", "b"), handlerFunc(echo))
		pool, addr := open(t, network.of("eu", "a")), RegionAddr("us", "b:1")
		for range 3 {
			pool.Keep(addr)
			synctest.Wait()
			if n := pool.Stats().Dialled; n != 1 {
				t.Errorf("%d connections", n)
			}
		}
		var replies [1]check.Reply
		if err := pool.Call(t.Context(), addr, relayed(3), replies[:]); err != nil || pool.Stats().Dialled != 1 {
			t.Errorf("%d connections, %v", pool.Stats().Dialled, err)
		}
	})
}

// TestRegionRejected: which hellos are rejected for their region, at either end. A node without a region is of any cluster, so
// that the flag can be given to one node after the other, but it is no node of another region.
func TestRegionRejected(t *testing.T) {
	for _, w := range []struct {
		name, own, other, dialed string
		want                     string // of the dialer's error; empty for none
		got                      string // of a RegionError, "-" for none
	}{
		{"one region", "", "", "", "", "-"},
		{"same region", "eu", "eu", "", "", "-"},
		{"the flag is new here", "eu", "", "", "", "-"},
		{"the flag is new there", "", "eu", "", "", "-"},
		{"member of another region", "eu", "us", "", `is of region "us", and not of region "eu"`, "us"},
		{"own address listed", "eu", "eu", "us", `is of region "eu", and not of region "us"`, "eu"},
		{"another region there", "eu", "ap", "us", `is of region "ap", and not of region "us"`, "ap"},
		{"no region there", "eu", "", "us", `is of region "", and not of region "us"`, ""},
		{"not in the list there", "ap", "us", "us", `"ap", which --regions of this one, of region "us", does not have`, "-"},
		{"listed", "eu", "us", "us", "", "-"},
	} {
		t.Run(w.name, func(t *testing.T) {
			network := newNetwork()
			b := network.of(w.other, "b")
			var log strings.Builder
			b.Log = slog.New(slog.NewTextHandler(&log, nil))
			b.Answer = func(context.Context, message.Body) message.Body { return &message.RegionResponse{} }
			_, stop := network.serve(t, "b:1", b, handlerFunc(echo))
			addr := "b:1"
			if w.dialed != "" {
				addr = RegionAddr(w.dialed, addr)
			}
			pool := open(t, network.of(w.own, "a"))
			_, err := pool.Query(t.Context(), addr, &message.RegionRequest{})
			if (err == nil) != (w.want == "") || err != nil && !strings.Contains(err.Error(), w.want) {
				t.Errorf("%v; want %q", err, w.want)
			}
			region, ok := errors.AsType[*RegionError](err)
			if ok != (w.got != "-") || ok && (region.Got != w.got || region.Name != "b" || region.Boot != "b-1") {
				t.Errorf("%+v; want that of %q", region, w.got)
			}
			stop()
			if w.name == "not in the list there" && !strings.Contains(log.String(), "peer rejected") {
				t.Errorf("not logged: %s", log.String())
			}
		})
	}
}
