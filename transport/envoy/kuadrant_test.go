package envoy

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/test/onenode"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/wire"
)

// kuadrant is a client that knows only what reflection shows, as Kuadrant's wasm-shim does.
type kuadrant struct {
	t    *testing.T
	ctx  context.Context
	node *onenode.Node
	conn *grpc.ClientConn
	file protoreflect.FileDescriptor
	// ids are reservations by the names that a test gives them.
	ids map[string]string
}

func openKuadrant(t *testing.T, rules string, change func(*Config)) *kuadrant {
	t.Helper()
	k := &kuadrant{t: t, ctx: t.Context(), node: apitest.NewNode(t), ids: map[string]string{"unknown": "no-such-id"}}
	c := Config{Limiter: newLimiter(t, k.node, rules)}
	if change != nil {
		change(&c)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.NewCodec()))
	open(t, c).Register(server)
	reflection.Register(server)
	lis := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///api", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	k.conn = conn
	k.reflect()
	return k
}

// reflect gets the file of the service from the server.
func (k *kuadrant) reflect() {
	k.t.Helper()
	ctx, cancel := context.WithCancel(k.t.Context())
	defer cancel()
	stream, err := reflectionv1.NewServerReflectionClient(k.conn).ServerReflectionInfo(ctx)
	if err != nil {
		k.t.Fatal(err)
	}
	err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "kuadrant.service.ratelimit.v1.RateLimitService",
	}})
	if err != nil {
		k.t.Fatal(err)
	}
	res, err := stream.Recv()
	if err != nil {
		k.t.Fatal(err)
	}
	files := new(descriptorpb.FileDescriptorSet)
	for _, data := range res.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(data, file); err != nil {
			k.t.Fatal(err)
		}
		files.File = append(files.File, file)
	}
	i := slices.IndexFunc(files.File, func(f *descriptorpb.FileDescriptorProto) bool {
		return f.GetPackage() == "kuadrant.service.ratelimit.v1"
	})
	if i < 0 {
		k.t.Fatalf("reflection shows %v", res)
	}
	if k.file, err = protodesc.NewFile(files.File[i], protoregistry.GlobalFiles); err != nil {
		k.t.Fatal(err)
	}
}

// call makes the call that a line says, "METHOD DESCRIPTORS", and shows the response. The words +amount=N, +ttl=D, +id=NAME and
// +as=NAME, which names the new reservation, are of the call, all others are those of parseRequest.
func (k *kuadrant) call(line string) string {
	k.t.Helper()
	method, text, _ := strings.Cut(line, " ")
	own := map[string]string{}
	var words []string
	for word := range strings.FieldsSeq(text) {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "+amount", "+ttl", "+id", "+as":
			own[key] = value
		default:
			words = append(words, word)
		}
	}
	of := k.file.Services().ByName("RateLimitService").Methods().ByName(protoreflect.Name(method))
	req, res := dynamicpb.NewMessage(of.Input()), dynamicpb.NewMessage(of.Output())
	data, err := proto.Marshal(parseRequest(k.t, strings.Join(words, " ")))
	if err == nil {
		err = proto.Unmarshal(data, req)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	fields := of.Input().Fields()
	if text, ok := own["+amount"]; ok {
		name := map[string]protoreflect.Name{"Reserve": "amount", "Commit": "actual_amount"}[method]
		req.Set(fields.ByName(name), protoreflect.ValueOf(number(k.t, text)))
	}
	if text, ok := own["+ttl"]; ok {
		ttl, err := time.ParseDuration(text)
		if err != nil {
			k.t.Fatal(err)
		}
		d := req.Mutable(fields.ByName("ttl")).Message()
		d.Set(d.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOf(int64(ttl/time.Second)))
		d.Set(d.Descriptor().Fields().ByName("nanos"), protoreflect.ValueOf(int32(ttl%time.Second)))
	}
	if name, ok := own["+id"]; ok {
		req.Set(fields.ByName("reservation_id"), protoreflect.ValueOf(k.ids[name]))
	}
	if err := k.conn.Invoke(k.ctx, fmt.Sprintf("/%s/%s", of.Parent().FullName(), method), req, res); err != nil {
		return status.Code(err).String() + " " + status.Convert(err).Message()
	}
	return k.show(res, own["+as"])
}

func (k *kuadrant) show(res *dynamicpb.Message, as string) string {
	k.t.Helper()
	fields := res.Descriptor().Fields()
	switch res.Descriptor().Name() {
	case "ReserveResponse":
		text := fields.ByName("code").Enum().Values().ByNumber(res.Get(fields.ByName("code")).Enum())
		if id := res.Get(fields.ByName("reservation_id")).String(); id != "" {
			k.ids[as] = id
			return string(text.Name()) + " with an ID"
		}
		return string(text.Name())
	case "CommitResponse":
		return map[bool]string{true: "released", false: "not released"}[res.Get(fields.ByName("reservation_released")).Bool()]
	}
	envoys := new(ratelimitv3.RateLimitResponse)
	data, err := proto.Marshal(res)
	if err == nil {
		err = proto.Unmarshal(data, envoys)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return show(envoys)
}

// tell makes the calls of lines, "TIME CALL -> RESPONSE", and compares the responses, by their beginning if that ends in "…".
func (k *kuadrant) tell(lines string) {
	k.t.Helper()
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		at, rest, _ := strings.Cut(line, " ")
		since, err := time.ParseDuration(at)
		call, want, ok := strings.Cut(rest, " -> ")
		if err != nil || !ok {
			k.t.Fatalf("%s: no time, or no response", line)
		}
		k.node.Now.Store(apitest.Start + int64(since))
		begins, short := strings.CutSuffix(want, "…")
		if got := k.call(strings.TrimSpace(call)); got != want && !(short && strings.HasPrefix(got, begins)) {
			k.t.Errorf("%s\ngot %s", line, got)
		}
	}
}

const tokens = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 100}
    reservation: {ttl: 30s, max_ttl: 1m}
  - key: team
    rate_limit: {unit: hour, requests_per_unit: 1000}
    reservation: {max_units: 60, on_expiry: release}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: part
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: queue
    rate_limit: {algorithm: leaky_queue, count: 5, period: 1s}
  - key: free
    rate_limit: {unlimited: true}
  - key: open
    on_failure: open
    rate_limit: {unit: hour, requests_per_unit: 1}
`

// TestLargeMessagesOfOthers: a large message for a domain in which its caller has no permission is
// rejected before it is decoded.
func TestLargeMessagesOfOthers(t *testing.T) {
	guard, _ := apitest.Guard(t, "anonymous: [{domains: [mine], verbs: [read]}]")
	api := open(t, Config{Limiter: newLimiter(t, apitest.NewNode(t), tokens), Guard: guard})
	for domain, want := range map[string]codes.Code{"mine": codes.OK, "theirs": codes.Unauthenticated, "": codes.Unauthenticated} {
		data, err := proto.Marshal(&ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: make([]*commonv3.RateLimitDescriptor, 1)})
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, bytes.Repeat([]byte{requestDescriptors<<3 | byte(protowire.BytesType), 0}, large)...)
		req := newRequest()
		e := envelope{api: api, ctx: t.Context(), req: req}
		if err := e.DecodeWire(data); err != nil || status.Code(e.err) != want || (len(req.GetDescriptors()) > 0) != (want == codes.OK) {
			t.Errorf("domain %q: %v, %v, %d descriptors; want %v", domain, err, e.err, len(req.GetDescriptors()), want)
		}
	}
}

// TestKuadrantReflection: the wasm-shim finds the service and its messages by reflection.
func TestKuadrantReflection(t *testing.T) {
	k := openKuadrant(t, tokens, nil)
	got := ""
	methods := k.file.Services().ByName("RateLimitService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		got += fmt.Sprintf("%s(%s) %s\n", m.Name(), m.Input().FullName(), m.Output().FullName())
	}
	for i := range k.file.Messages().Len() {
		m := k.file.Messages().Get(i)
		got += string(m.Name())
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			got += fmt.Sprintf(" %d:%s:%s:%s", f.Number(), f.Name(), f.Cardinality(), f.Kind())
		}
		got += "\n"
	}
	const want = `CheckRateLimit(envoy.service.ratelimit.v3.RateLimitRequest) envoy.service.ratelimit.v3.RateLimitResponse
Report(envoy.service.ratelimit.v3.RateLimitRequest) envoy.service.ratelimit.v3.RateLimitResponse
Reserve(kuadrant.service.ratelimit.v1.ReserveRequest) kuadrant.service.ratelimit.v1.ReserveResponse
Commit(kuadrant.service.ratelimit.v1.CommitRequest) kuadrant.service.ratelimit.v1.CommitResponse
ReserveRequest 1:domain:optional:string 2:descriptors:repeated:message 3:amount:optional:uint64 4:ttl:optional:message
ReserveResponse 1:code:optional:enum 2:reservation_id:optional:string
CommitRequest 1:domain:optional:string 2:descriptors:repeated:message 3:reservation_id:optional:string 4:actual_amount:optional:uint64
CommitResponse 1:reservation_released:optional:bool
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestKuadrant(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		change      func(*Config)
	}{
		{"a check charges nothing", `
			0s CheckRateLimit user=ann +all=100 -> ok: ok 100/HOUR left=100 reset=0s
			0s CheckRateLimit user=ann +all=101 -> over: over 100/HOUR left=100 reset=1h0m0s
			0s Report user=ann +all=40 -> ok: ok 100/HOUR left=60 reset=1h0m0s
			0s CheckRateLimit user=ann +all=60 | team=red +hits=1 -> ok: ok 100/HOUR left=60 reset=1h0m0s; ok 1000/HOUR left=1000 reset=0s
			0s CheckRateLimit user=ann +all=61 | team=red +hits=1 -> over: over 100/HOUR left=60 reset=1h0m0s; ok 1000/HOUR left=1000 reset=0s
			0s CheckRateLimit user=ann +hits=0 -> ok: ok 100/HOUR left=60 reset=1h0m0s
			0s CheckRateLimit user=ann +hits=9 +back -> ok: ok 100/HOUR left=60 reset=1h0m0s
			0s CheckRateLimit watched=x +all=2 -> ok: ok 1/HOUR left=1 reset=0s
			0s CheckRateLimit nothing=x | free=x -> ok: ok; ok left=4294967295
		`, nil},
		{"a check is as all or nothing as Envoy's", `
			0s Report part=a -> ok: ok 1/HOUR left=0 reset=1h0m0s
			0s CheckRateLimit part=a | part=b -> over: over 1/HOUR left=0 reset=1h0m0s; ok 1/HOUR left=1 reset=0s
			0s CheckRateLimit user=ann +hits=2 | user=bob +hits=5 +back | team=red +hits=0 -> ok: ok 100/HOUR left=100 reset=0s; ok 100/HOUR left=100 reset=0s; ok 1000/HOUR left=1000 reset=0s
			0s CheckRateLimit user=ann -> ok: ok 100/HOUR left=100 reset=0s
		`, func(c *Config) { c.AllOrNothing = true }},
		{"a report is charged whatever the limits say", `
			0s Report part=a -> ok: ok 1/HOUR left=0 reset=1h0m0s
			0s CheckRateLimit part=a | part=b -> ok: over 1/HOUR left=0 reset=1h0m0s; ok 1/HOUR left=1 reset=0s
			0s Report user=ann +all=150 | nothing=x -> ok: ok 100/HOUR left=0 reset=1h0m0s; ok
			0s CheckRateLimit user=ann -> over: over 100/HOUR left=0 reset=1h0m0s
			0s Report user=ann +all=60 +back -> ok: ok 100/HOUR left=10 reset=1h0m0s
			0s Report user=ann +hits=0 -> ok: ok 100/HOUR left=10 reset=1h0m0s
		`, nil},
		{"a commit releases what is not used", `
			0s Reserve user=ann | team=red +amount=40 +as=a -> OK with an ID
			0s CheckRateLimit user=ann +all=60 | team=red -> ok: ok 100/HOUR left=60 reset=1h0m0s; ok 1000/HOUR left=960 reset=30s
			0s Reserve user=ann +amount=61 +as=b -> OVER_LIMIT
			1s Commit user=ann | team=red +id=a +amount=10 -> released
			1s Commit user=ann | team=red +id=a +amount=10 -> not released
			1s CheckRateLimit user=ann | team=red -> ok: ok 100/HOUR left=90 reset=59m59s; ok 1000/HOUR left=990 reset=59m59s
			1s Reserve user=ann +amount=90 +as=c -> OK with an ID
			1s Commit user=ann +id=c +amount=0 -> released
			1s Reserve user=ann +amount=90 +as=c -> OK with an ID
			1s Commit user=ann +id=c +amount=95 -> released
			1s CheckRateLimit user=ann -> over: over 100/HOUR left=0 reset=59m59s
		`, nil},
		{"hits of descriptors do not count", `
			0s Reserve user=ann +hits=0 | team=red +back +amount=40 +as=a -> OK with an ID
			0s Commit user=bob +hits=0 | user=cid +hits=9 +back +amount=10 -> not released
			0s CheckRateLimit user=ann | team=red | user=bob | user=cid -> ok: ok 100/HOUR left=60 reset=1h0m0s; ok 1000/HOUR left=960 reset=30s; ok 100/HOUR left=90 reset=1h0m0s; ok 100/HOUR left=90 reset=1h0m0s
		`, nil},
		{"a commit that is late is charged what expiry did not charge", `
			0s  Reserve user=ann +amount=40 +ttl=10s +as=a -> OK with an ID
			0s  Reserve team=red +amount=40 +ttl=10s +as=b -> OK with an ID
			10s Commit user=ann +id=a +amount=50 -> not released
			10s Commit team=red +id=b +amount=30 -> not released
			10s Commit team=red +id=b +amount=30 -> not released
			10s CheckRateLimit user=ann | team=red -> ok: ok 100/HOUR left=50 reset=59m50s; ok 1000/HOUR left=970 reset=59m50s
		`, nil},
		{"a commit without a known reservation is a report", `
			0s  Commit user=ann +amount=10 -> not released
			0s  Commit user=ann +id=unknown +amount=10 -> not released
			0s  Commit user=ann +id=unknown +amount=10 -> not released
			0s  Commit user=ann +id=unknown +amount=0 -> not released
			0s  CheckRateLimit user=ann -> ok: ok 100/HOUR left=70 reset=1h0m0s
		`, nil},
		{"without a rule there is no reservation", `
			0s Reserve nothing=x | free=x +amount=5 -> OK
			0s Reserve user=ann +domain=other +amount=5 -> OK
			0s Commit nothing=x +amount=5 -> not released
		`, nil},
		{"what cannot be had is over the limit", `
			0s Reserve user=ann +amount=101 -> OVER_LIMIT
			0s Reserve team=red +amount=61 -> OVER_LIMIT
			0s Reserve open=x +amount=2 -> OVER_LIMIT
			0s Reserve user=ann | team=red +amount=61 -> OVER_LIMIT
			0s Reserve user=ann | =x +amount=1 -> OVER_LIMIT
			0s Reserve part=a | part=b +amount=1 +as=a -> OK with an ID
			0s Reserve part=a | part=c +amount=1 -> OVER_LIMIT
			0s CheckRateLimit user=ann | team=red | part=c -> ok: ok 100/HOUR left=100 reset=0s; ok 1000/HOUR left=1000 reset=0s; ok 1/HOUR left=1 reset=0s
		`, nil},
		{"shadow mode denies nothing", `
			0s Report watched=x -> ok: ok 1/HOUR left=0 reset=1h0m0s
			0s Reserve watched=x +amount=5 -> OK
			0s Reserve watched=x | user=ann +amount=5 +as=a -> OK with an ID
		`, nil},
		{"an override has its own counter", `
			0s Reserve user=ann +limit=5/HOUR +amount=5 +as=a -> OK with an ID
			0s Reserve user=ann +limit=5/HOUR +amount=5 -> OVER_LIMIT
			0s Reserve user=ann +amount=100 +as=a -> OK with an ID
		`, nil},
		{"an overloaded node decides by the rule", `
			0s Reserve user=ann +amount=5 -> OVER_LIMIT
			0s Reserve open=x +amount=1 -> OK
			0s Reserve nothing=x +amount=1 -> OK
			0s CheckRateLimit user=ann -> over: over reset=1s
			0s CheckRateLimit open=x -> ok: ok
			0s Report user=ann -> Unavailable descriptors[0]: this node has too much to do…
			0s Report nothing=x -> ok: ok
			0s Commit user=ann +amount=1 -> Unavailable descriptors[0]: this node has too much to do…
		`, func(c *Config) { c.Admit = func() bool { return false } }},
	} {
		t.Run(c.name, func(t *testing.T) { openKuadrant(t, tokens, c.change).tell(c.lines) })
	}
}

// TestKuadrantForgotten: a commit of a reservation that its counter has forgotten is a report, made once.
func TestKuadrantForgotten(t *testing.T) {
	k := openKuadrant(t, tokens, nil)
	k.tell(`
		0s Reserve user=ann | team=red +amount=10 +as=a -> OK with an ID
		0s Commit user=ann | team=red +id=a +amount=10 -> released
	`)
	for shard := range 7 { // those of onenode.Node
		k.node.Table.Sweep(apitest.Start+int64(time.Hour), shard)
	}
	k.tell(`
		1h Commit user=ann | team=red +id=a +amount=5 -> not released
		1h Commit user=ann | team=red +id=a +amount=5 -> not released
		1h CheckRateLimit user=ann | team=red -> ok: ok 100/HOUR left=95 reset=1h0m0s; ok 1000/HOUR left=995 reset=1h0m0s
	`)
}

// TestKuadrantUndecided: what no owner has decided is decided by the rule, and a charge that was not made is told.
func TestKuadrantUndecided(t *testing.T) {
	var k *kuadrant
	lost := false // the answers about all counters, or all but the first of several
	k = openKuadrant(t, tokens, func(c *Config) {
		c.Limiter = newLimiter(t, decideFunc(func(ctx context.Context, b *check.Batch) {
			k.node.Decide(ctx, b)
			for i := range b.Answers {
				if lost && (i > 0 || len(b.Answers) == 1) {
					b.Answers[i] = check.Answer{Err: check.ErrNoOwner}
				}
			}
		}), tokens)
	})
	k.tell("0s Reserve user=ann +amount=5 +as=a -> OK with an ID")
	lost = true
	k.tell(`
		0s CheckRateLimit user=ann -> over: over reset=1s
		0s CheckRateLimit open=x -> ok: ok
		0s Report user=ann -> Unavailable descriptors[0]: no node that may decide…
		0s Report nothing=x | user=ann -> Unavailable descriptors[1]: no node that may decide…
		0s Report user=ann | team=red -> ok: ok 100/HOUR left=92 reset=1h0m0s; unknown
		0s Reserve user=ann +amount=5 -> OVER_LIMIT
		0s Reserve open=x +amount=1 -> OK
		0s Commit user=ann +id=a +amount=5 -> Unavailable no node that may decide…
	`)
}

// TestKuadrantErrors: bad input is an error that names the field, and changes nothing.
func TestKuadrantErrors(t *testing.T) {
	k := openKuadrant(t, tokens, nil)
	many := strings.Repeat("user=x | ", limiter.MaxBudgets) + "user=x"
	long := strings.Repeat("x", limiter.MaxText)
	k.tell(`
		0s CheckRateLimit =x -> InvalidArgument descriptors[0].entries[0].key: empty
		0s CheckRateLimit user=ann +domain= -> InvalidArgument domain: empty
		0s Report user=ann | =x -> InvalidArgument descriptors[1].entries[0].key: empty
		0s Report user=ann +limit=1/NONE -> InvalidArgument descriptors[0].limit.unit: 0 is no unit…
		0s Report user=ann +domain= -> InvalidArgument domain: empty
		0s Reserve user=ann -> InvalidArgument amount: 0; want at least 1
		0s Reserve user=ann +amount=9223372036854775808 -> InvalidArgument amount: 9223372036854775808; want at most 9223372036854775807
		0s Reserve user=ann +amount=9223372036854775807 -> OVER_LIMIT
		0s Reserve user=ann +amount=1 +ttl=0s -> InvalidArgument ttl: 0 s and 0 ns; want at least 1ms, or leave it out
		0s Reserve user=ann +amount=1 +ttl=-5s -> InvalidArgument ttl: -5 s and 0 ns; want at least 1ms, or leave it out
		0s Reserve user=ann +amount=1 +ttl=61s -> InvalidArgument ttl: 1m1s; the rule allows at most 1m0s
		0s Reserve user=ann +amount=1 +domain= -> InvalidArgument domain: empty
		0s Reserve =x +amount=1 -> InvalidArgument descriptors[0].entries[0].key: empty
		0s Reserve ` + many + ` +amount=1 -> InvalidArgument descriptors: there are 17; want at most 16
		0s Reserve user=ann | queue=q +amount=1 -> InvalidArgument descriptors[1]: units of …
		0s Reserve user=ann +limit=5/HOUR +domain=` + long + ` +amount=1 -> InvalidArgument domain: the names of the domains are too long…
		0s Commit user=ann +amount=9223372036854775808 -> InvalidArgument actual_amount: 9223372036854775808; want at most 9223372036854775807
		0s Commit user=ann +amount=1 +domain= -> InvalidArgument domain: empty
		0s Commit user=ann +id=unknown +amount=1 +domain= -> InvalidArgument domain: empty
		0s Commit user=ann | =x +amount=1 -> InvalidArgument descriptors[1].entries[0].key: empty
		0s CheckRateLimit user=ann -> ok: ok 100/HOUR left=100 reset=0s
	`)
}

// TestKuadrantOddText: a value that is not UTF-8 is counted, as Envoy's are, and what is no message is an error.
func TestKuadrantOddText(t *testing.T) {
	k := openKuadrant(t, tokens, nil)
	data, err := proto.Marshal(parseRequest(t, "user=XX"))
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, 0x18, 100) // amount
	for _, c := range []struct {
		data []byte
		want string
	}{
		{bytes.ReplaceAll(data, []byte("XX"), []byte("\xff\xfe")), "OK with an ID"},
		{bytes.ReplaceAll(data, []byte("XX"), []byte("\xff\xfe")), "OVER_LIMIT"},
		{bytes.ReplaceAll(data, []byte("XX"), []byte("\xff\xfd")), "OK with an ID"},
		{[]byte{0x12, 0x01, 0x0a}, "InvalidArgument"}, // a descriptor that ends too early
	} {
		var raw emptypb.Empty
		raw.ProtoReflect().SetUnknown(c.data)
		res := dynamicpb.NewMessage(k.file.Messages().ByName("ReserveResponse"))
		got := ""
		if err := k.conn.Invoke(t.Context(), ReserveMethod, &raw, res); err != nil {
			got = status.Code(err).String()
		} else {
			got = k.show(res, "a")
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.data, got, c.want)
		}
	}
}

// TestKuadrantAccess: each call needs the permission for what it does, and a reservation that for its own domain.
func TestKuadrantAccess(t *testing.T) {
	token, err := access.NewToken(strings.NewReader(strings.Repeat("x", 32)))
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := access.DigestOf(token)
	policy := func(grants string) *access.Policy {
		p, err := access.Parse("callers.yaml", []byte("callers: [{name: shim, tokens: ['"+digest.String()+"'], grants: ["+grants+"]}]"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	guard := access.NewGuard(nil, slog.New(slog.DiscardHandler), time.Now)
	k := openKuadrant(t, tokens, func(c *Config) { c.Guard = guard })
	k.tell("0s Reserve user=ann +amount=5 +as=a -> OK with an ID")
	guard.SetPolicy(policy("{domains: [d], verbs: [check]}"))
	k.tell(`
		0s CheckRateLimit user=ann -> Unauthenticated …
		0s Report user=ann -> Unauthenticated …
		0s Reserve user=ann +amount=5 -> Unauthenticated …
		0s Commit user=ann +amount=5 -> Unauthenticated …
		0s Commit user=ann +id=a +amount=5 -> Unauthenticated …
	`)
	k.ctx = grpcmetadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	k.tell(`
		0s CheckRateLimit user=ann -> PermissionDenied the caller shim may not read in the domain "d"
		0s Report user=ann -> PermissionDenied the caller shim may not charge in the domain "d"
		0s Reserve user=ann +amount=5 +domain=e -> PermissionDenied the caller shim may not check in the domain "e"
		0s Commit user=ann +amount=5 -> PermissionDenied the caller shim may not charge in the domain "d"
		0s Commit user=ann +id=unknown +amount=5 -> PermissionDenied the caller shim may not charge in the domain "d"
		0s Commit user=ann +id=a +amount=5 +domain=e -> PermissionDenied the caller shim may not check in the domain "e"
		0s Reserve user=ann +amount=5 +as=b -> OK with an ID
		0s Commit user=ann +id=b +amount=0 -> released
	`)
	guard.SetPolicy(policy("{domains: [e], verbs: [check, charge, read]}"))
	k.tell(`0s Commit user=ann +id=a +amount=5 +domain=e -> PermissionDenied the caller shim may not check in the domain "d"`)
	guard.SetPolicy(policy("{domains: [d], verbs: [check, charge, read]}"))
	k.tell(`
		0s Report user=ann +all=10 -> ok: ok 100/HOUR left=85 reset=1h0m0s
		0s Commit user=ann +id=a +amount=5 -> released
		0s CheckRateLimit user=ann -> ok: ok 100/HOUR left=85 reset=1h0m0s
	`)
}
