package gubernatordiff

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

// TestClient: gubernator's own client, with the code that its authors generated, is answered.
func TestClient(t *testing.T) {
	p := newPair(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, served := grpc.NewServer(), make(chan error, 1)
	p.api.Register(g)
	go func() { served <- g.Serve(lis) }()
	defer func() {
		g.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}()
	out, err := exec.Command(build(t, "client"), lis.Addr().String()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// protojson puts a space here and there, differently in each build.
	got := strings.ReplaceAll(strings.TrimSpace(string(out)), `, "`, `,"`)
	for i, want := range []string{
		`{"responses":[{"limit":"10","remaining":"7","reset_time":"1700007000000"},{"error":"field 'unique_key' cannot be empty"},` +
			`{"limit":"10","remaining":"2","reset_time":"1700006760000"},{"status":"OVER_LIMIT","limit":"10","remaining":"7","reset_time":"1700007000000"}]}`,
		`{"status":"unhealthy","message":"this node has no quorum: "}`,
		`{}`,
		`rpc error: code = OutOfRange desc = requests: there are 1001; want at most 1000, split the call`,
	} {
		line, rest, _ := strings.Cut(got, "\n")
		got = rest
		if line != want {
			t.Errorf("answer %d: %s\nwant      %s", i, line, want)
		}
	}
	if got != "" {
		t.Errorf("there is more: %s", got)
	}
}
