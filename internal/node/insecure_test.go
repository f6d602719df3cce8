package node

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/limiter"
)

// TestInsecure: a node that other machines reach says what it runs without, in its log at any level, in its report, and in the
// health of the cluster.
func TestInsecure(t *testing.T) {
	const join, check = "--insecure=secret: any process that reaches the ports can join the cluster",
		"no --callers: every client that reaches the ports of 0.0.0.0 may check and reset any key"
	for _, c := range []struct {
		change func(*Config)
		want   []string
	}{
		{func(*Config) {}, []string{join, check}},
		{func(c *Config) { c.SecretFile = "s" }, []string{check}},
		{func(c *Config) { c.Callers = "c" }, []string{join}},
		{func(c *Config) { c.Callers, c.Secret = "c", []byte("s") }, nil},
		{func(c *Config) { c.Bind = "127.0.0.1" }, nil},
		{func(c *Config) { c.Bind, c.Admin = "127.0.0.1", Admin{Addr: "10.0.0.1:7464", Anywhere: true} },
			[]string{"--admin-anywhere: the operators' token is sent to 10.0.0.1:7464 without TLS"}},
	} {
		config := Defaults()
		config.Bind, config.Insecure = "0.0.0.0", []string{"secret"}
		c.change(&config)
		if got := config.insecurities(); !slices.Equal(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// An admin port of all addresses on a loopback node, so that the test opens no other port to the network.
	config := testConfig(t)
	config.Admin = Admin{Addr: "127.0.0.1:0", Anywhere: true}
	var lines logLines
	n, err := Open(t.Context(), config, slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelError})))
	do(t, err)
	defer n.closeParts()
	if lines.count("--admin-anywhere: the operators' token is sent") != 1 {
		t.Errorf("the log has %s", lines.text.String())
	}
	var r facts.Node
	if (limiterCluster{n, n.queries}).Report(&r); len(r.Insecure) != 1 {
		t.Errorf("the report has %q", r.Insecure)
	}
	causes := limiter.JudgeHealth(limiter.Members{Self: "n1"}, []facts.Node{r}, nil).Causes
	if !slices.ContainsFunc(causes, func(c limiter.Cause) bool { return c.Severity == limiter.Notice && c.Text == "n1: "+r.Insecure[0] }) {
		t.Errorf("the health has %+v", causes)
	}
}
