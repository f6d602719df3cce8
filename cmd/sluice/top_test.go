package main

import (
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func TestTopText(t *testing.T) {
	res := &adminv1alpha1.TopResponse{
		CoversNs: int64(70 * time.Second), Nodes: []string{"n1", "n2"}, Missing: []string{"n3"},
		Keys: []*adminv1alpha1.TopKey{
			{Domain: "api", Rule: "per user", Count: 700, Error: 3, PerSecond: 10, Descriptor_: []*sluicev1.Entry{{Key: "tier", Value: "free"}, {Key: "user", Value: "ann b"}}},
			{Domain: "api", Count: 7, PerSecond: 0.1, Cut: true, Descriptor_: []*sluicev1.Entry{{Key: "x", Value: "\x1b[2J\t"}}},
		},
	}
	for _, c := range []struct {
		f    topFlags
		want string
	}{
		{topFlags{sort: "rate"}, "limited keys of the last 1m10s: 2 keys, 10.1 denied/s together; from n1, n2\nno answer from n3\n" +
			"PER SECOND  SHARE      DOMAIN  KEY                     RULE\n" +
			"10.0        ##### 99%  api     tier=free \"user=ann b\"  \"per user\"\n" +
			"0.1         .....  1%  api     \"x=\\x1b[2J\\t\" …         -\n"},
		{topFlags{sort: "count", clientFlags: clientFlags{output: "wide"}}, "limited keys of the last 1m10s: 2 keys, 10.1 denied/s together; from n1, n2\nno answer from n3\n" +
			"PER SECOND  SHARE      DOMAIN  KEY                     RULE        DENIED\n" +
			"10.0        ##### 99%  api     tier=free \"user=ann b\"  \"per user\"  700 (-3)\n" +
			"0.1         .....  1%  api     \"x=\\x1b[2J\\t\" …         -           7\n"},
	} {
		if got := ansi.Strip(c.f.text("limited", res)); got != c.want {
			t.Errorf("%s\nwant\n%s", got, c.want)
		}
	}
	f := topFlags{by: "limited", sort: "rate"}
	for _, k := range []struct {
		key      byte
		again    bool
		by, sort string
	}{{'f', true, "frequent", "rate"}, {'k', false, "frequent", "key"}, {'l', true, "limited", "key"}, {'c', false, "limited", "count"}} {
		if again := f.key(k.key); again != k.again || f.by != k.by || f.sort != k.sort {
			t.Errorf("%c: %v %s %s", k.key, again, f.by, f.sort)
		}
	}
}

func topCommand(t *testing.T, n *running) {
	addr := n.grpc
	for range 5 {
		cli("check", "--addr", addr, "--domain", "auth", "user=top")
	}
	code, out, errs := cli("top", "--addr", addr, "--once")
	if code != 0 || !strings.Contains(out, "limited keys of the last") || !strings.Contains(out, "user=top") || !strings.Contains(out, "1 key") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	code, out, _ = cli("top", "--addr", addr, "--once", "--by", "frequent", "-o", "json", "--domain", "auth")
	if code != 0 || !strings.Contains(out, `"by":"frequent"`) || !strings.Contains(out, `"count":5,`) || !strings.Contains(out, `"descriptor":[{"key":"user","value":"top"}],"domain":"auth"`) ||
		!strings.Contains(out, `"rule":"auth/user"`) || !strings.Contains(out, `"missing":[]`) {
		t.Errorf("%d %s", code, out)
	}
	if _, out, _ = cli("top", "--addr", addr, "--once", "-o", "json", "--domain", "other"); !strings.Contains(out, `"keys":[]`) {
		t.Errorf("of another domain: %s", out)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--by", "size"}, `--by: "size" is neither limited nor frequent`},
		{[]string{"-n", "0"}, "--number: 0 is not 1 to 100"},
		{[]string{"-n", "101"}, "--number: 101 is not 1 to 100"},
		{[]string{"--interval", "1ms"}, "--interval: 1ms is below 100ms"},
		{[]string{"-o", "xml"}, "--output"},
	} {
		if code, _, errs := cli(append([]string{"top", "--addr", addr, "--once"}, c.args...)...); code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d %s", c.args, code, errs)
		}
	}
	if code, _, errs := cli("serve", "--top-keys", "perhaps"); code != exitUsage || !strings.Contains(errs, `--top-keys: "perhaps" is none of off, local, on`) {
		t.Errorf("%d %s", code, errs)
	}
}
