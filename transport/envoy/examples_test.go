package envoy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/rules/ruletest"
	"github.com/sluicecluster/sluice/test/apitest"
)

const examples = "../../examples/envoy"

func readExample(t *testing.T, name string) rules.File {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(examples, name))
	if err != nil {
		t.Fatal(err)
	}
	return rules.File{Name: name, Data: data}
}

// decodeConfig decodes a configuration as Envoy does: a field that its types do not have, or a
// value that their validation rejects, is an error, within typed_config too.
func decodeConfig(text []byte) (*bootstrapv3.Bootstrap, error) {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	config := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(asJSON, config); err != nil {
		return nil, err
	}
	err = protorange.Range(config.ProtoReflect(), func(p protopath.Values) error {
		if m, ok := p.Index(-1).Value.Interface().(protoreflect.Message); ok {
			if v, ok := m.Interface().(interface{ ValidateAll() error }); ok {
				return v.ValidateAll()
			}
		}
		return nil
	})
	return config, err
}

// unpack returns what a typed_config holds.
func unpack[M proto.Message](t *testing.T, a *anypb.Any) M {
	t.Helper()
	m, err := a.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	typed, ok := m.(M)
	if !ok {
		t.Fatalf("%T, want %T", m, typed)
	}
	return typed
}

// edge is the part of the example that limits: the filter, the only virtual host that it works
// for, and the clusters.
type edge struct {
	filter   *filterv3.RateLimit
	host     *routev3.VirtualHost
	clusters map[string]*clusterv3.Cluster
}

func readEdge(t *testing.T) edge {
	t.Helper()
	config, err := decodeConfig(readExample(t, "envoy.yaml").Data)
	if err != nil {
		t.Fatal(err)
	}
	e := edge{clusters: make(map[string]*clusterv3.Cluster)}
	for _, c := range config.GetStaticResources().GetClusters() {
		e.clusters[c.GetName()] = c
	}
	manager := unpack[*hcmv3.HttpConnectionManager](t, config.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig())
	filters := manager.GetHttpFilters()
	e.filter = unpack[*filterv3.RateLimit](t, filters[0].GetTypedConfig())
	if last := filters[len(filters)-1].GetName(); last != "envoy.filters.http.router" {
		t.Errorf("the last filter is %s, want the router", last)
	}
	hosts := manager.GetRouteConfig().GetVirtualHosts()
	if len(hosts) != 1 {
		t.Fatalf("%d virtual hosts", len(hosts))
	}
	e.host = hosts[0]
	return e
}

// TestExampleIsStrict: the decoding that the other tests trust rejects what Envoy rejects.
func TestExampleIsStrict(t *testing.T) {
	good := string(readExample(t, "envoy.yaml").Data)
	for _, c := range []struct{ from, to, want string }{
		{"domain: edge", "domian: edge", "domian"},
		{"domain: edge", `domain: ""`, "Domain"},
		{"http2_protocol_options: {}", "http2_protocol_option: {}", "http2_protocol_option"},
		{"vh_rate_limits: INCLUDE", "vh_rate_limits: INCLUDED", "INCLUDED"},
		{"stat_prefix: edge", `stat_prefix: ""`, "StatPrefix"},
		{"timeout: 2s", "timeout: 2s\n                      timeout: 1s", "already defined"},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if _, err := decodeConfig([]byte(bad)); bad == good || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one about %s", c.to, err, c.want)
		}
	}
}

// TestExampleFitsTogether: the clusters that are named are there, sluice's speaks HTTP/2 at the ports
// of the demo, and Envoy waits longer than a node does.
func TestExampleFitsTogether(t *testing.T) {
	e := readEdge(t)
	for _, r := range e.host.GetRoutes() {
		if name := r.GetRoute().GetCluster(); e.clusters[name] == nil {
			t.Errorf("route %s: there is no cluster %q", r.GetMatch(), name)
		}
	}
	c := e.clusters[e.filter.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName()]
	if c == nil {
		t.Fatal("the filter asks a cluster that is not there")
	}
	const options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	if o := unpack[*upstreamv3.HttpProtocolOptions](t, c.GetTypedExtensionProtocolOptions()[options]); o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil {
		t.Error("sluice's cluster does not speak HTTP/2")
	}
	var ports []uint32
	for _, at := range c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints() {
		ports = append(ports, at.GetEndpoint().GetAddress().GetSocketAddress().GetPortValue())
	}
	if !slices.Equal(ports, []uint32{7460, 7470, 7480}) {
		t.Errorf("ports %v, want those of the demo", ports)
	}
	if wait := e.filter.GetTimeout().AsDuration().Milliseconds(); wait <= 500 {
		t.Errorf("the filter waits %d ms, want more than --check-timeout", wait)
	}
}

// visit is a request to the example's Envoy.
type visit struct {
	method, path, key, address string
}

// descriptors returns what Envoy would ask about v: for each rate_limits of the route, and of
// the virtual host where the route has none or includes them, what all its actions add.
func (e edge) descriptors(t *testing.T, v visit) (out []*commonv3.RateLimitDescriptor) {
	t.Helper()
	at := slices.IndexFunc(e.host.GetRoutes(), func(r *routev3.Route) bool {
		m := r.GetMatch()
		return v.path == m.GetPath() || m.GetPrefix() != "" && strings.HasPrefix(v.path, m.GetPrefix())
	})
	if at < 0 {
		t.Fatalf("%v: no route", v)
	}
	route := e.host.GetRoutes()[at]
	limits := slices.Clone(route.GetRoute().GetRateLimits())
	include := false
	if own := route.GetTypedPerFilterConfig()["envoy.filters.http.ratelimit"]; own != nil {
		include = unpack[*filterv3.RateLimitPerRoute](t, own).GetVhRateLimits() == filterv3.RateLimitPerRoute_INCLUDE
	}
	if len(limits) == 0 || include {
		limits = append(limits, e.host.GetRateLimits()...)
	}
	for _, l := range limits {
		d := new(commonv3.RateLimitDescriptor)
		for _, a := range l.GetActions() {
			key, value, ok := act(t, a, v)
			if !ok { // what one action cannot say, the descriptor does not
				d = nil
				break
			}
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		if d != nil {
			out = append(out, d)
		}
	}
	return out
}

// act returns the entry that action a adds for v, if it does.
func act(t *testing.T, a *routev3.RateLimit_Action, v visit) (key, value string, ok bool) {
	t.Helper()
	header := func(name string) string {
		return map[string]string{":method": v.method, "x-api-key": v.key}[name]
	}
	switch {
	case a.GetRemoteAddress() != nil:
		return "remote_address", v.address, true
	case a.GetGenericKey() != nil:
		return a.GetGenericKey().GetDescriptorKey(), a.GetGenericKey().GetDescriptorValue(), true
	case a.GetRequestHeaders() != nil:
		value := header(a.GetRequestHeaders().GetHeaderName())
		return a.GetRequestHeaders().GetDescriptorKey(), value, value != ""
	case a.GetHeaderValueMatch() != nil:
		m := a.GetHeaderValueMatch()
		for _, h := range m.GetHeaders() {
			re := regexp.MustCompile("^(?:" + h.GetStringMatch().GetSafeRegex().GetRegex() + ")$")
			if !re.MatchString(header(h.GetName())) {
				return "", "", false
			}
		}
		return m.GetDescriptorKey(), m.GetDescriptorValue(), true
	}
	t.Fatalf("an action that this test does not know: %v", a)
	return
}

// TestExample: what Envoy asks for each kind of request is what the rules of the example are
// about, and the other way round; and sluice answers as the README says.
func TestExample(t *testing.T) {
	e, file := readEdge(t), readExample(t, "rules/edge.yaml")
	set, err := rules.Parse([]rules.File{file}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range set.Warnings() {
		t.Error(w)
	}
	if domains := set.Domains(); !slices.Equal(domains, []string{e.filter.GetDomain()}) {
		t.Errorf("rules for %v, and Envoy asks for %s", domains, e.filter.GetDomain())
	}
	reached := map[string]bool{}
	for _, c := range []struct {
		visit visit
		want  string
	}{
		{visit{method: "GET", path: "/"}, "per-client"},
		{visit{method: "POST", path: "/anything"}, "per-client"},
		{visit{method: "POST", path: "/login"}, "login-per-client"},
		{visit{method: "GET", path: "/api/things", key: "k1"}, "api-per-key, per-client"},
		{visit{method: "GET", path: "/api/things"}, "per-client"},
		{visit{method: "POST", path: "/api/things", key: "k1"}, "api-per-key, api-writes, per-client"},
		{visit{method: "DELETE", path: "/api/"}, "api-writes, per-client"},
	} {
		c.visit.address = "192.0.2.1"
		var names []string
		for _, d := range e.descriptors(t, c.visit) {
			var entries []rules.Entry
			for _, one := range d.GetEntries() {
				entries = append(entries, rules.Entry{Key: one.GetKey(), Value: one.GetValue()})
			}
			r, _ := set.Match(e.filter.GetDomain(), entries)
			if r == nil {
				t.Errorf("%v: no rule for %v", c.visit, entries)
				continue
			}
			names = append(names, r.Name)
			reached[r.Name] = true
		}
		if got := strings.Join(names, ", "); got != c.want {
			t.Errorf("%v: rules %s, want %s", c.visit, got, c.want)
		}
	}
	for _, r := range set.Rules() {
		if !reached[r.Name] {
			t.Errorf("Envoy never asks about what rule %s is for", r.Name)
		}
	}

	d := open(t, Config{Limiter: newLimiter(t, apitest.NewNode(t), string(file.Data))})
	login := request(e.filter.GetDomain(), e.descriptors(t, visit{method: "POST", path: "/login", address: "192.0.2.1"})...)
	for i := range 6 {
		res, err := d.ShouldRateLimit(t.Context(), login)
		want := fmt.Sprintf("ok: ok 5/MINUTE login-per-client left=%d reset=1m0s", 4-i)
		told := ""
		if i == 5 {
			want, told = "over: over 5/MINUTE login-per-client left=0 reset=1m0s", "Cache-Control: no-store"
		}
		if err != nil || show(res) != want || headers(res) != told || (len(res.GetRawBody()) > 0) != (i == 5) {
			t.Errorf("login %d: %v, %v; want %s", i, res, err, want)
		}
	}
}

// TestExampleRules runs the test cases that stand beside the example's rules.
func TestExampleRules(t *testing.T) {
	set, err := rules.Parse([]rules.File{readExample(t, "rules/edge.yaml")}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	results, err := ruletest.Run(set, []rules.File{readExample(t, "rules/edge_test.yaml")})
	if err != nil || len(results) == 0 {
		t.Fatal(results, err)
	}
	for _, r := range results {
		for _, f := range r.Failures {
			t.Errorf("%s: %s", r.Name, f)
		}
	}
}
