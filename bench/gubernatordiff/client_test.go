package gubernatordiff

import (
	"os/exec"
	"strings"
	"testing"
)

// TestClient: gubernator's own client, with the code that its authors generated, is answered.
func TestClient(t *testing.T) {
	p := newPair(t)
	out, err := exec.Command(build(t, "client"), p.addr).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// protojson puts a space here and there, differently in each build.
	got := strings.ReplaceAll(strings.TrimSpace(string(out)), `, "`, `,"`)
	for i, want := range []string{
		`{"responses":[{"limit":"10","remaining":"7","reset_time":"1700007000000"},{"error":"field 'unique_key' cannot be empty"},` +
			`{"limit":"10","remaining":"2","reset_time":"1700006760000"},{"status":"OVER_LIMIT","limit":"10","remaining":"7","reset_time":"1700007000000"}]}`,
		`{"status":"healthy","peer_count":1,"advertise_address":"192.0.2.1:7460"}`,
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
