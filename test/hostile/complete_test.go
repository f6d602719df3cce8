package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
	"github.com/sluicecluster/sluice/transport/envoy"
)

// A client sends messages that are complete, as long as they may be, and made of as many elements
// as fit: decoded, each would take many times its size. `go run ./test/scenario hostile` runs this. It is judged
// by memory and by status, not by time.

const (
	completeLimit  = 256 // MiB of --memory-limit
	completeSize   = 4<<20 - 64
	completeChecks = 10_000
)

// complete is a message that some API must survive.
type complete struct {
	name string
	// method is a gRPC method, or the path of an HTTP request.
	method string
	// body returns message i.
	body func(i int) []byte
	// stream: the method is one of streams. operator: it is for operators.
	stream, operator bool
	// ok: the message is valid, and all of them must be served.
	ok bool
}

// filled repeats part until it is as long as a message may be.
func filled(part ...byte) []byte { return bytes.Repeat(part, completeSize/len(part)) }

// field is a field of bytes.
func field(num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), value)
}

// empties is a field num of empty messages, as many as fit.
func empties(num protowire.Number) []byte { return filled(field(num, nil)...) }

// always is a body that is the same each time.
func always(body []byte) func(int) []byte { return func(int) []byte { return body } }

// repeatedJSON is a JSON text: part, as often as fits, between head and tail.
func repeatedJSON(head, part, tail string) []byte {
	n := (completeSize - len(head) - len(tail)) / (len(part) + 1)
	return []byte(head + strings.TrimSuffix(strings.Repeat(part+",", n), ",") + tail)
}

// manyLimits is a valid call with as many limits as a call may have. Each has its own keys.
func manyLimits(unlimited bool) func(i int) []byte {
	return func(i int) []byte {
		q := new(sluicev1.CheckRequest)
		for j := range completeChecks {
			c := &sluicev1.Check{Domain: "d", Descriptor_: process.Entries("k", fmt.Sprint(i, j))}
			for k := range 16 {
				l := &sluicev1.Limit{Unlimited: true}
				if !unlimited {
					l = &sluicev1.Limit{Count: int64(k + 1), PeriodNs: int64(time.Hour)}
				}
				c.Limits = append(c.Limits, l)
			}
			q.Checks = append(q.Checks, c)
		}
		body, err := proto.Marshal(q)
		if err != nil {
			panic(err)
		}
		return body
	}
}

func manyLimitsJSON(i int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"checks":[`)
	for j := range completeChecks {
		if j > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"domain":"d","descriptor":["k=%d %d"],"limits":[`, i, j)
		b.WriteString(strings.TrimSuffix(strings.Repeat(`{"unlimited":true},`, 16), ",") + "]}")
	}
	b.WriteString("]}")
	return b.Bytes()
}

func completes() []complete {
	const gubernator = "/pb.gubernator.V1/GetRateLimits"
	entry := field(1, nil)
	var widest []byte // 10,000 descriptors or checks of 64 entries
	for len(widest) < completeSize-200 {
		widest = append(widest, field(2, bytes.Repeat(entry, 64))...)
	}
	return []complete{
		{name: "descriptors", method: envoy.Method, body: always(empties(2))},
		{name: "entries", method: envoy.Method, body: always(field(2, empties(1)[:completeSize-64]))},
		{name: "descriptors × entries", method: envoy.Method, body: always(append(field(1, []byte("d")), widest...))},
		{name: "unknown fields", method: envoy.Method, body: always(filled(protowire.AppendVarint(protowire.AppendTag(nil, 100, protowire.VarintType), 1)...))},
		{name: "descriptors", method: envoy.CheckRateLimitMethod, body: always(empties(2))},
		{name: "descriptors", method: envoy.ReportMethod, body: always(empties(2))},
		{name: "descriptors", method: envoy.ReserveMethod, body: always(empties(2))},
		{name: "descriptors", method: envoy.CommitMethod, body: always(empties(2))},
		{name: "checks", method: sluicev1.RateLimitService_Reserve_FullMethodName, body: always(empties(1))},
		{name: "limits", method: sluicev1.RateLimitService_Reserve_FullMethodName, body: always(field(1, empties(5)[:completeSize-64]))},
		{name: "descriptor", method: sluicev1.RateLimitService_Held_FullMethodName, body: always(empties(2))},
		{name: "unknown fields", method: sluicev1.RateLimitService_Settle_FullMethodName, body: always(empties(100))},
		{name: "checks", method: sluicev1.RateLimitService_Check_FullMethodName, body: always(empties(1))},
		{name: "limits", method: sluicev1.RateLimitService_Check_FullMethodName, body: always(field(1, empties(5)[:completeSize-64]))},
		{name: "10,000 × 16 unlimited", method: sluicev1.RateLimitService_Check_FullMethodName, body: manyLimits(true), ok: true},
		{name: "10,000 × 16 counted", method: sluicev1.RateLimitService_Check_FullMethodName, body: manyLimits(false), ok: true},
		{name: "10,000 × 16 unlimited", method: sluicev1.RateLimitService_CheckStream_FullMethodName, body: manyLimits(true), stream: true, ok: true},
		{name: "release", method: sluicev1.RateLimitService_Session_FullMethodName, body: always(field(2, make([]byte, completeSize-64))), stream: true},
		{name: "resume", method: sluicev1.RateLimitService_Session_FullMethodName, body: always(empties(3)), stream: true},
		{name: "acquire", method: sluicev1.RateLimitService_Session_FullMethodName, body: always(empties(1)), stream: true},
		{name: "descriptor", method: adminv1alpha1.AdminService_Inspect_FullMethodName, body: always(empties(2))},
		{name: "descriptor", method: adminv1alpha1.AdminService_Inspect_FullMethodName, body: always(empties(2)), operator: true},
		{name: "requests", method: gubernator, body: always(empties(1))},
		{name: "requests", method: "/v1/GetRateLimits", body: always(repeatedJSON(`{"requests":[`, "{}", "]}"))},
		{name: "metadata", method: "/v1/GetRateLimits", body: always(repeatedJSON(`{"requests":[{"x":[`, "{}", "]}]}"))},
		{name: "checks", method: "/v1/check", body: always(repeatedJSON(`{"checks":[`, "{}", "]}"))},
		{name: "10,000 × 16 unlimited", method: "/v1/check", body: manyLimitsJSON, ok: true},
		{name: "descriptor", method: "/v1/held", body: always(repeatedJSON(`{"descriptor":[`, "{}", "]}"))},
		{name: "a string", method: "/v1/check", body: always([]byte(`{"domain":"` + strings.Repeat("x", completeSize-64) + `"}`))},
	}
}

// TestCompleteMessages sends 1, 2, 4 and 8 messages at once to a node of its own. Resident memory
// stays within 1.25 × --memory-limit, valid messages are served, and others get an error that says
// what to change.
func TestCompleteMessages(t *testing.T) {
	for _, c := range completes() {
		t.Run(strings.Trim(c.method, "/")+"/"+c.name, func(t *testing.T) {
			n := process.Start(t, process.Config{Name: "pod-1", Args: []string{"--memory-limit", fmt.Sprintf("%dMiB", completeLimit)}})
			c.besiege(t, n, 1, 2, 4, 8)
		})
	}
}

// TestCompleteMessagesFromReaders: a token that may only read one domain takes no memory by
// messages for others.
func TestCompleteMessagesFromReaders(t *testing.T) {
	k := process.NewTokens(t)
	token, digest := k.Make("reader")
	k.Write("callers.yaml", "callers: [{name: reader, tokens: ['"+digest+"'], grants: [{domains: [mine], verbs: [read]}]}]\n")
	for _, c := range completes() {
		if c.ok || c.stream || c.operator {
			continue
		}
		t.Run(strings.Trim(c.method, "/")+"/"+c.name, func(t *testing.T) {
			n := process.Start(t, process.Config{Name: "pod-1", Token: token, Args: []string{
				"--memory-limit", fmt.Sprintf("%dMiB", completeLimit), "--callers", filepath.Join(k.Dir, "callers.yaml"),
			}})
			c.besiege(t, n, 8)
		})
	}
}

// besiege sends that many messages at once.
func (c complete) besiege(t *testing.T, n *process.Node, counts ...int) {
	var bodies [][]byte
	for i := range slices.Max(counts) {
		bodies = append(bodies, c.body(i))
	}
	row := fmt.Sprintf("%6d kB, at rest %3d MiB; ", len(bodies[0])/1000, n.Memory("VmHWM"))
	for _, count := range counts {
		n.ResetPeak(t)
		answers := make(map[string]int)
		var mu sync.Mutex
		var all sync.WaitGroup
		send := c.sender(t, n)
		for i := range count {
			all.Go(func() {
				answer, ok := send(bodies[i])
				if !ok {
					t.Errorf("%d at once: %s", count, answer)
				}
				mu.Lock()
				answers[answer]++
				mu.Unlock()
			})
		}
		all.Wait()
		peak := n.Memory("VmHWM")
		row += fmt.Sprintf(" %d: %4d", count, peak)
		if peak > completeLimit*5/4 {
			t.Errorf("%d at once: %d MiB were resident; want at most 1.25 × %d", count, peak, completeLimit)
		}
		if count == slices.Max(counts) {
			t.Log("TABLE", row, "MiB")
			for answer, times := range answers {
				t.Logf("%d × %s", times, answer)
			}
		}
	}
}

// sender returns what sends one message, and reports what the node answered and whether it may.
func (c complete) sender(t *testing.T, n *process.Node) func(body []byte) (answer string, ok bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	if strings.HasPrefix(c.method, "/v1/") {
		return func(body []byte) (string, bool) { return c.post(ctx, n, body) }
	}
	conn := n.Dial()
	if c.operator {
		conn = n.OperatorConn()
	}
	t.Cleanup(func() { conn.Close() })
	return func(body []byte) (string, bool) {
		var answer []byte
		options := []grpc.CallOption{grpc.ForceCodec(process.BytesCodec{}), grpc.MaxCallRecvMsgSize(64 << 20)}
		if !c.stream {
			return c.verdict(conn.Invoke(ctx, c.method, &body, &answer, options...))
		}
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, c.method, options...)
		if err == nil {
			err = s.SendMsg(&body)
		}
		if err == nil {
			_ = s.CloseSend()
			err = s.RecvMsg(&answer)
		}
		if err == io.EOF {
			err = nil
		}
		return c.verdict(err)
	}
}

// verdict is what a gRPC call was answered.
func (c complete) verdict(err error) (string, bool) {
	code := status.Code(err)
	if c.ok {
		return fmt.Sprint(code, ": ", status.Convert(err).Message()), code == codes.OK
	}
	ok := []codes.Code{codes.OK, codes.InvalidArgument, codes.ResourceExhausted, codes.OutOfRange, codes.PermissionDenied, codes.NotFound, codes.FailedPrecondition}
	if c.stream {
		ok = append(ok, codes.DeadlineExceeded) // a session without heartbeats
	}
	return fmt.Sprint(code, ": ", clipped(status.Convert(err).Message())), slices.Contains(ok, code)
}

func clipped(s string) string { return s[:min(len(s), 300)] }

func (c complete) post(ctx context.Context, n *process.Node, body []byte) (string, bool) {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+n.HTTP+c.method, bytes.NewReader(body))
	if err != nil {
		return err.Error(), false
	}
	req.Header.Set("Content-Type", "application/json")
	if n.Token != "" {
		token, err := os.ReadFile(n.Token)
		if err != nil {
			return err.Error(), false
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Do(req)
	if err != nil {
		return err.Error(), false
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error(), false
	}
	if r.StatusCode == http.StatusOK {
		return "200", true
	}
	ok := []int{http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusServiceUnavailable}
	return fmt.Sprint(r.StatusCode, ": ", clipped(string(text))), !c.ok && slices.Contains(ok, r.StatusCode)
}

// TestHalfBodies: many HTTP requests whose bodies do not end take no more memory than the node may
// have.
func TestHalfBodies(t *testing.T) {
	n := process.Start(t, process.Config{Name: "pod-1", Args: []string{"--memory-limit", fmt.Sprintf("%dMiB", completeLimit)}})
	part := bytes.Repeat([]byte("x"), completeSize)
	var all sync.WaitGroup
	for _, path := range []string{"/v1/check", "/v1/GetRateLimits"} {
		for range 64 {
			c, err := net.Dial("tcp", n.HTTP)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			all.Go(func() {
				fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, n.HTTP, len(part)+1)
				c.SetWriteDeadline(time.Now().Add(5 * time.Second))
				c.Write(part) // the node may stop to read
			})
		}
	}
	all.Wait()
	judgeMemory(t, n, "128 bodies of 4 MiB without their last byte")
}

// TestCompleteMessagesWhenFull sends all of them at once, each over a connection of its own, to a
// node that has as many counters as fit. Small messages, whose memory is not counted, come with
// them.
func TestCompleteMessagesWhenFull(t *testing.T) {
	n := process.Start(t, process.Config{Name: "pod-1", Args: []string{"--memory-limit", fmt.Sprintf("%dMiB", completeLimit)}})
	fill := complete{method: sluicev1.RateLimitService_Check_FullMethodName, ok: true}
	send := fill.sender(t, n)
	body := manyLimits(false)
	for i := 0; n.Vitals()["sluice_counters_evicted_live_total"] == 0; i++ {
		if answer, ok := send(body(1000 + i)); !ok {
			t.Fatalf("filling: %s", answer)
		}
	}
	judgeMemory(t, n, "full")
	var all sync.WaitGroup
	for i, c := range completes() {
		send, body := c.sender(t, n), c.body(i)
		for range 2 {
			all.Go(func() { send(body) }) // what is answered depends on the others
		}
	}
	for range 4 {
		c := complete{method: envoy.Method}
		send, body := c.sender(t, n), empties(2)[:4000]
		for range 250 {
			all.Go(func() { send(body) })
		}
	}
	all.Wait()
	judgeMemory(t, n, "all messages at once")
	process.Eventually(t, time.Minute, "a valid message is served afterwards", func() error {
		if answer, ok := send(body(0)); !ok {
			return errors.New(answer) // overloaded, perhaps
		}
		return nil
	})
}

// judgeMemory shows the most memory that the node has had, and fails if it is too much.
func judgeMemory(t *testing.T, n *process.Node, what string) {
	t.Helper()
	peak := n.Memory("VmHWM")
	t.Logf("TABLE %s: %d MiB", what, peak)
	if peak > completeLimit*5/4 {
		t.Errorf("%s: %d MiB were resident; want at most 1.25 × %d", what, peak, completeLimit)
	}
}
