package proxies

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// decodeEnvoy decodes a configuration as Envoy does: a field that its types do not have is an error, and so is a
// value that they reject, within typed_config too.
func decodeEnvoy(t *testing.T, text string) *bootstrapv3.Bootstrap {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	config := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(asJSON, config); err != nil {
		t.Fatal(err)
	}
	err = protorange.Range(config.ProtoReflect(), func(p protopath.Values) error {
		if m, ok := p.Index(-1).Value.Interface().(protoreflect.Message); ok {
			if v, ok := m.Interface().(interface{ ValidateAll() error }); ok {
				return v.ValidateAll()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return config
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

// matches reports whether the lower-case name of a header is in a list.
func matches(list *matcherv3.ListStringMatcher, header string) bool {
	return slices.ContainsFunc(list.GetPatterns(), func(m *matcherv3.StringMatcher) bool {
		header := strings.ToLower(header)
		return m.GetExact() == header || m.GetPrefix() != "" && strings.HasPrefix(header, m.GetPrefix())
	})
}

// TestEnvoy: the file is one that Envoy accepts, its parts fit together, and what ext_authz sends by it is
// understood.
func TestEnvoy(t *testing.T) {
	host := newHost(t)
	config := decodeEnvoy(t, example(t, "envoy-ext-authz/envoy.yaml", host))
	edge := config.GetStaticResources().GetListeners()[0]
	if a := edge.GetAddress().GetSocketAddress(); a.GetAddress() != host || a.GetPortValue() != 10000 {
		t.Errorf("listens at %v", a)
	}
	manager := unpack[*hcmv3.HttpConnectionManager](t, edge.GetFilterChains()[0].GetFilters()[0].GetTypedConfig())
	if !manager.GetUseRemoteAddress().GetValue() {
		t.Error("without use_remote_address Envoy believes X-Forwarded-For and adds nothing")
	}
	auth := unpack[*authv3.ExtAuthz](t, manager.GetHttpFilters()[0].GetTypedConfig())
	service := auth.GetHttpService()
	clusters := make(map[string]string)
	for _, c := range config.GetStaticResources().GetClusters() {
		a := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
		clusters[c.GetName()] = a.GetAddress()
		if c.GetName() == service.GetServerUri().GetCluster() && a.GetPortValue() != 7461 {
			t.Errorf("asks port %d, which is not that of HTTP", a.GetPortValue())
		}
	}
	if clusters[service.GetServerUri().GetCluster()] != host || auth.GetFailureModeAllow() {
		t.Fatalf("the filter is %v, the clusters %v", auth, clusters)
	}
	for _, header := range []string{"x-forwarded-uri", "x-forwarded-method", "x-forwarded-host"} {
		if matches(auth.GetAllowedHeaders(), header) {
			t.Errorf("%s of the client goes to sluice", header)
		}
	}

	node := startSluice(t, host, "envoy-ext-authz/rules")
	standIn{
		t: t,
		tells: func(h string) bool {
			return matches(service.GetAuthorizationResponse().GetAllowedClientHeadersOnSuccess(), h)
		},
		asks: func(r *http.Request) *http.Request {
			q, err := http.NewRequest(r.Method, "http://"+host+":7461"+service.GetPathPrefix()+r.RequestURI, nil)
			if err != nil {
				t.Error(err)
				return nil
			}
			q.Host = r.Host
			r.Header.Set("X-Forwarded-For", strings.Join(append(r.Header.Values("X-Forwarded-For"), peerOf(t, r)), ","))
			for name, values := range r.Header {
				if matches(auth.GetAllowedHeaders(), name) {
					q.Header[name] = values
				}
			}
			return q
		},
	}.listen(host)
	conversation(t, host, "Too many attempts", true)
	node.stop()
	failsClosed(t, host, "no node answers")
}
