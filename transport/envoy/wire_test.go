package envoy

import (
	"bytes"
	"context"
	"net"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/internal/wire"
)

// TestOverTheWire asks the way Envoy does: with the generated client, by the service's full name.
func TestOverTheWire(t *testing.T) {
	d := open(t, Config{ResponseHeaders: true, DynamicMetadata: true, Limiter: newLimiter(t, apitest.NewNode(t), `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1, name: each}
    response: {body: enough}
`)})
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.NewCodec()))
	d.Register(server)
	if _, ok := server.GetServiceInfo()["envoy.service.ratelimit.v3.RateLimitService"]; !ok {
		t.Errorf("services: %v", server.GetServiceInfo())
	}
	lis := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///api", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := ratelimitv3.NewRateLimitServiceClient(conn)
	for i, want := range []string{"ok: ok 1/MINUTE each left=0 reset=1m0s", "over: over 1/MINUTE each left=0 reset=1m0s"} {
		res, err := client.ShouldRateLimit(t.Context(), request("d", descriptor("user=ann")))
		if err != nil || show(res) != want || headers(res) != limitHeaders(1, 0, 60) {
			t.Errorf("call %d: %v, %v; want %s and the headers", i, res, err, want)
		}
		if body := string(res.GetRawBody()); body != []string{"", "enough"}[i] {
			t.Errorf("call %d: body %q", i, body)
		}
		if got := res.GetDynamicMetadata().AsMap()["domain"]; got != "d" {
			t.Errorf("call %d: metadata %v", i, res.GetDynamicMetadata())
		}
	}
	// Generated Go does not send what is not UTF-8; Envoy does.
	odd := request("d", descriptor("user=XX"), descriptor("user=YY"))
	data, err := proto.Marshal(odd)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"ok: ok 1/MINUTE each left=0 reset=1m0s; ok 1/MINUTE each left=0 reset=1m0s",
		"over: over 1/MINUTE each left=0 reset=1m0s; over 1/MINUTE each left=0 reset=1m0s"} {
		var raw emptypb.Empty
		raw.ProtoReflect().SetUnknown(bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("XX"), []byte("\xff\xfe")), []byte("YY"), []byte("\xff\xfd")))
		res := new(ratelimitv3.RateLimitResponse)
		if err := conn.Invoke(t.Context(), Method, &raw, res); err != nil || show(res) != want {
			t.Errorf("headers that are not UTF-8, call %d: %s, %v; want %s", i, show(res), err, want)
		}
	}
	var raw emptypb.Empty
	raw.ProtoReflect().SetUnknown([]byte{0x12, 0x01, 0x0a}) // a descriptor that ends too early
	if err := conn.Invoke(t.Context(), Method, &raw, new(ratelimitv3.RateLimitResponse)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("garbage: %v", err)
	}
	if _, err := client.ShouldRateLimit(t.Context(), request("d")); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no descriptors: %v", err)
	}
}
