package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/rules"
)

const (
	noRedis   = "the nodes keep the counters"
	noXDS     = "rules are files, re-read when they change: write what the xDS server sends into files"
	noStatsd  = "Prometheus metrics at /metrics of the HTTP port; agents such as Telegraf and OpenTelemetry's collector send them on"
	allShadow = "each rule needs shadow_mode: true; give --runtime DIR and --write-rules DIR for such files"
)

// Ratelimit has the settings of envoyproxy/ratelimit in 2026.
var Ratelimit = &Product{Name: "ratelimit", Title: "envoyproxy/ratelimit", settings: []setting{
	{"GRPC_HOST HOST", converted, "0.0.0.0", host("bind"), "--bind, for all ports"},
	{"GRPC_PORT", converted, "8081", same("grpc-port"), "--grpc-port"},
	{"PORT", converted, "8080", same("http-port"), "--http-port; /healthcheck is /readyz, /json is /v1/check"},
	{"DEBUG_HOST DEBUG_PORT", needless, "", nil, "/metrics replaces /stats, the console /rlconfig; operators get profiles"},
	{"GRPC_UDS", missing, "", nil, "clients connect by TCP"},
	{"GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE", missing, "24h 1h", nil, "connections are kept: give Envoy's cluster all nodes (STRICT_DNS)"},
	{"GRPC_SERVER_USE_TLS", converted, "", yes(remark("the HTTP port has TLS too: probes and scrapes need https")), "--tls-cert, --tls-key; for the HTTP port too"},
	{"GRPC_SERVER_TLS_CERT", converted, "", beside("GRPC_SERVER_USE_TLS", same("tls-cert")), "--tls-cert"},
	{"GRPC_SERVER_TLS_KEY", converted, "", beside("GRPC_SERVER_USE_TLS", same("tls-key")), "--tls-key"},
	{"GRPC_CLIENT_TLS_CACERT", converted, "", beside("GRPC_SERVER_USE_TLS", all(same("tls-client-ca"), fixed("tls-client-auth", "require"))), "--tls-client-ca, --tls-client-auth require"},
	{"GRPC_CLIENT_TLS_SAN", missing, "", nil, "a caller with that certificate in the ACL (--callers)"},
	{"LOG_LEVEL", converted, "warn", logLevel, "--log-level"},
	{"LOG_FORMAT", converted, "", choice("log-format", "text", "text", "json", "json"), "--log-format"},
	{"CONFIG_TYPE", missing, "FILE", nil, noXDS},
	{"FORCE_START_WITHOUT_INITIAL_CONFIG", missing, "false", nil, "a node ends at its start if its rules are missing or invalid"},
	{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", needless, "", nil, "a ready node has valid rules"},
	{"CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", needless, "", nil, noXDS},
	{"RUNTIME_ROOT", converted, "/srv/runtime_data/current", runtimeRoot, "--rules ROOT/SUBDIRECTORY/APPDIRECTORY"},
	{"RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY", needless, "", nil, "they are in --rules"},
	{"RUNTIME_WATCH_ROOT RUNTIME_IGNOREDOTFILES", needless, "", nil, "files and links are watched; names with a dot first are not read"},
	{"MERGE_DOMAIN_CONFIG", converted, "", yes(fixed("merge-domains", "true")), "--merge-domains"},
	{"SHADOW_MODE QUOTA_MODE", converted, "", yes(remark(allShadow)), allShadow},
	{"LIMIT_RESPONSE_HEADERS_ENABLED", converted, "", yes(fixed("envoy-response-headers", "true")), "--envoy-response-headers"},
	{"LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER", missing, "RateLimit-Limit RateLimit-Remaining RateLimit-Reset", nil, "the names are fixed, RateLimit-Limit and so on: rename them in Envoy"},
	{"LIMIT_REQUEST_HEADERS_ENABLED", missing, "false", nil, "requests get no headers; --envoy-dynamic-metadata"},
	{"LIMIT_REQUEST_LIMIT_HEADER LIMIT_REQUEST_REMAINING_HEADER LIMIT_REQUEST_RESET_HEADER", needless, "", nil, "as LIMIT_REQUEST_HEADERS_ENABLED"},
	{"RESPONSE_DYNAMIC_METADATA", converted, "", yes(fixed("envoy-dynamic-metadata", "true")), "--envoy-dynamic-metadata"},
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", needless, "", nil, "denied hits are not counted"},
	{"NEAR_LIMIT_RATIO", missing, "0.8", nil, "there is no near_limit: alert on the share that is denied"},
	{"LOCAL_CACHE_SIZE_IN_BYTES", needless, "", nil, "nodes remember denials"},
	{"BACKEND_TYPE CACHE_KEY_PREFIX EXPIRATION_JITTER_MAX_SECONDS", needless, "", nil, noRedis},
	{"REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_TLS REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_USE_EXPLICIT_PIPELINE", needless, "", nil, noRedis},
	{"REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_USE_EXPLICIT_PIPELINE", needless, "", nil, noRedis},
	{"MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", needless, "", nil, noRedis},
	{"USE_STATSD", converted, "true", yes(remark(noStatsd)), noStatsd},
	{"USE_DOG_STATSD STATSD_HOST STATSD_PORT STATS_FLUSH_INTERVAL USE_DOG_STATSD_MOGRIFIERS", needless, "", nil, "as USE_STATSD"},
	{"EXTRA_TAGS", missing, "", nil, "labels of the target, or external_labels, in Prometheus"},
	{"DISABLE_STATS USE_PROMETHEUS", needless, "", nil, "/metrics is always there"},
	{"PROMETHEUS_ADDR PROMETHEUS_PATH", missing, "/metrics", nil, "scrape /metrics of the HTTP port"},
	{"PROMETHEUS_MAPPER_YAML", missing, "", nil, "metrics have the labels domain, rule and result"},
	{"TRACING_ENABLED", converted, "", yes(all()), "--otlp-endpoint"},
	{"OTEL_EXPORTER_OTLP_ENDPOINT", converted, "", beside("TRACING_ENABLED", same("otlp-endpoint")), "--otlp-endpoint"},
	{"TRACING_SAMPLING_RATE", converted, "1", beside("TRACING_ENABLED", same("trace-sample")), "--trace-sample"},
	{"TRACING_EXPORTER_PROTOCOL", missing, "grpc", nil, otelGRPC},
	{"TRACING_SERVICE_NAME", missing, "RateLimit", nil, "OTEL_SERVICE_NAME"},
	{"TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID", missing, "", nil, "OTEL_RESOURCE_ATTRIBUTES"},
}}

func runtimeRoot(c *conversion, v string) error {
	c.set("rules", path.Join(v, c.values["RUNTIME_SUBDIRECTORY"], cmp.Or(c.values["RUNTIME_APPDIRECTORY"], "config")))
	return nil
}

// readRules loads the rule files as a node does, adds what of them would not be in force, and writes them anew for shadow mode.
func (c *conversion) readRules() error {
	if c.rules == "" {
		return nil
	}
	set, skipped, err := rulefiles.Load(c.rules, rules.Options{MergeDomains: c.flag("merge-domains") != nil})
	if err != nil {
		return err
	}
	for _, w := range set.Warnings() {
		c.now = Note{Setting: w.Path, At: fmt.Sprintf("%s:%d", w.File, w.Line)}
		c.note(Todo, w.Text)
	}
	for _, s := range skipped {
		c.now = Note{At: s.File}
		c.note(Todo, "is not read: "+s.Reason)
	}
	c.now = Note{}
	shadow := slices.ContainsFunc(c.Notes, func(n Note) bool { return n.Outcome == Todo && n.Text == allShadow })
	for _, r := range set.Rules() {
		name, err := filepath.Rel(c.rules, r.File)
		if err == nil && shadow {
			c.Files[filepath.ToSlash(name)], err = shadowed(r.File)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shadowed is a rule file with shadow_mode: true beside each rate_limit.
func shadowed(file string) (string, error) {
	data, err := os.ReadFile(file)
	var doc yaml.Node
	if err = errors.Join(err, yaml.Unmarshal(data, &doc)); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	shadowAll(&doc)
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err = errors.Join(e.Encode(&doc), e.Close())
	return b.String(), err
}

func shadowAll(n *yaml.Node) {
	limit, mode := -1, -1
	for i, part := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 {
			shadowAll(part)
		} else if part.Value == "rate_limit" {
			limit = i
		} else if part.Value == "shadow_mode" {
			mode = i
		}
	}
	switch yes := (&yaml.Node{Kind: yaml.ScalarNode, Value: "true"}); {
	case limit >= 0 && mode >= 0:
		n.Content[mode+1] = yes
	case limit >= 0:
		n.Content = slices.Insert(n.Content, limit, &yaml.Node{Kind: yaml.ScalarNode, Value: "shadow_mode"}, yes)
	}
}
