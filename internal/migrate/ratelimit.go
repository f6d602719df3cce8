package migrate

import (
	"fmt"
	"path/filepath"
)

const (
	noRedis    = "the nodes keep the counters"
	noXDS      = "rules are files: write those that the xDS server sends, or mount them"
	noStatsd   = "metrics are at /metrics of the HTTP port; an agent that scrapes Prometheus (Telegraf, Datadog, OpenTelemetry) passes them on"
	noDebug    = "/metrics takes the place of /stats, `sluice rules check` and the console that of /rlconfig; profiles are on the operators' socket"
	oneSetting = "it belongs to "
)

// Ratelimit has the settings of envoyproxy/ratelimit of 2026: settings.go, with those of the pull requests for explicit pipelines and
// request headers.
var Ratelimit = &Product{
	Name: "ratelimit", Title: "envoyproxy/ratelimit",
	settings: []setting{
		{"GRPC_HOST HOST", converted, "0.0.0.0", host("bind"), "--bind, for all ports"},
		{"GRPC_PORT", converted, "8081", port("grpc-port"), "--grpc-port"},
		{"PORT", converted, "8080", port("http-port"), "--http-port; POST /json is POST /v1/check, /healthcheck is /readyz"},
		{"DEBUG_HOST DEBUG_PORT", needless, "", nil, noDebug},
		{"GRPC_UDS", missing, "", nil, "clients connect by TCP only: --bind and --grpc-port"},
		{"GRPC_MAX_CONNECTION_AGE", missing, "24h", nil, "connections are kept: let Envoy's cluster have all nodes (STRICT_DNS), so that it balances by itself"},
		{"GRPC_MAX_CONNECTION_AGE_GRACE", missing, "1h", nil, oneSetting + "GRPC_MAX_CONNECTION_AGE"},
		{"GRPC_SERVER_USE_TLS", converted, "", ratelimitTLS, "--tls-cert and --tls-key, on the HTTP port too"},
		{"GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY", needless, "", nil, oneSetting + "GRPC_SERVER_USE_TLS"},
		{"GRPC_CLIENT_TLS_CACERT", needless, "", nil, "--tls-client-ca with --tls-client-auth require, if GRPC_SERVER_USE_TLS is true"},
		{"GRPC_CLIENT_TLS_SAN", missing, "", nil, "a caller of the ACL (--callers) with certificates: [\"dns:NAME\"]"},
		{"LOG_LEVEL", converted, "warn", logLevel, "--log-level: debug, info, warn or error"},
		{"LOG_FORMAT", converted, "", logFormat, "--log-format"},

		{"CONFIG_TYPE", converted, "", ratelimitConfig, "FILE: --rules. " + noXDS},
		{"FORCE_START_WITHOUT_INITIAL_CONFIG", missing, "false", nil, "a node ends at the start if its rules are invalid or missing"},
		{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", needless, "", nil, "a node is ready only with valid rules"},
		{"CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", needless, "", nil, noXDS},
		{"CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN", needless, "", nil, noXDS},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", needless, "", nil, noXDS},

		{"RUNTIME_ROOT", converted, "/srv/runtime_data/current", ratelimitRules, "--rules ROOT/SUBDIRECTORY/APPDIRECTORY"},
		{"RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY", needless, "", nil, oneSetting + "--rules, with RUNTIME_ROOT"},
		{"RUNTIME_WATCH_ROOT", needless, "", nil, "changes of files and of links are both seen"},
		{"RUNTIME_IGNOREDOTFILES", needless, "", nil, "names that begin with a dot are never read"},
		{"MERGE_DOMAIN_CONFIG", converted, "", when("merge-domains", "true"), "--merge-domains"},
		{"SHADOW_MODE", converted, "", ratelimitShadow, "shadow_mode: true in each rule; `sluice migrate` writes the files"},
		{"QUOTA_MODE", converted, "", ratelimitShadow, "shadow_mode: true in each rule: no request is over its limit"},

		{"LIMIT_RESPONSE_HEADERS_ENABLED", converted, "", when("envoy-response-headers", "true"), "--envoy-response-headers"},
		{"LIMIT_LIMIT_HEADER", missing, "RateLimit-Limit", nil, "the header is RateLimit-Limit; rename it in Envoy"},
		{"LIMIT_REMAINING_HEADER", missing, "RateLimit-Remaining", nil, "the header is RateLimit-Remaining; rename it in Envoy"},
		{"LIMIT_RESET_HEADER", missing, "RateLimit-Reset", nil, "the header is RateLimit-Reset; rename it in Envoy"},
		{"LIMIT_REQUEST_HEADERS_ENABLED", missing, "false", nil, "no headers are added to requests; --envoy-dynamic-metadata passes the descriptors on to filters"},
		{"LIMIT_REQUEST_LIMIT_HEADER LIMIT_REQUEST_REMAINING_HEADER LIMIT_REQUEST_RESET_HEADER", needless, "", nil, oneSetting + "LIMIT_REQUEST_HEADERS_ENABLED"},
		{"RESPONSE_DYNAMIC_METADATA", converted, "", when("envoy-dynamic-metadata", "true"), "--envoy-dynamic-metadata"},

		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", needless, "", nil, "denied hits are not counted beyond the limit"},
		{"NEAR_LIMIT_RATIO", missing, "0.8", nil, "there is no near_limit: alert on the share of denied checks, or see `sluice top`"},
		{"EXPIRATION_JITTER_MAX_SECONDS", needless, "", nil, noRedis},
		{"LOCAL_CACHE_SIZE_IN_BYTES", needless, "", nil, "nodes remember denials of other nodes until they expire"},
		{"BACKEND_TYPE CACHE_KEY_PREFIX", needless, "", nil, noRedis},
		{"REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", needless, "", nil, noRedis},
		{"REDIS_TLS REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", needless, "", nil, noRedis},
		{"REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_USE_EXPLICIT_PIPELINE", needless, "", nil, noRedis},
		{"REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS", needless, "", nil, noRedis},
		{"REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_USE_EXPLICIT_PIPELINE", needless, "", nil, noRedis},
		{"MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH", needless, "", nil, noRedis},
		{"MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", needless, "", nil, noRedis},

		{"USE_STATSD", missing, "false", nil, noStatsd},
		{"STATSD_HOST STATSD_PORT STATS_FLUSH_INTERVAL USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS", needless, "", nil, oneSetting + "USE_STATSD"},
		{"EXTRA_TAGS", missing, "", nil, "labels are added where Prometheus scrapes: external_labels, or labels of the target"},
		{"DISABLE_STATS USE_PROMETHEUS", needless, "", nil, "/metrics is always there"},
		{"PROMETHEUS_ADDR", missing, ":9090", nil, "scrape the HTTP port instead"},
		{"PROMETHEUS_PATH", missing, "/metrics", nil, "the path is /metrics"},
		{"PROMETHEUS_MAPPER_YAML", missing, "", nil, "metrics have labels already: domain, rule and result"},

		{"TRACING_ENABLED", converted, "", ratelimitTraces, "--otlp-endpoint, if OTEL_EXPORTER_OTLP_ENDPOINT is given"},
		{"TRACING_SAMPLING_RATE", converted, "", ratelimitSampling, "--trace-sample"},
		{"TRACING_EXPORTER_PROTOCOL OTEL_EXPORTER_OTLP_ENDPOINT", needless, "", nil, "--otlp-endpoint has it, over gRPC"},
		{"TRACING_SERVICE_NAME", missing, "RateLimit", nil, "OTEL_SERVICE_NAME in the environment of sluice"},
		{"TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID", missing, "", nil, "OTEL_RESOURCE_ATTRIBUTES in the environment of sluice; service.instance.id is --name"},
	},
	finish: func(c *conversion) error {
		if c.text("USE_STATSD")+c.text("USE_DOG_STATSD")+c.text("USE_PROMETHEUS")+c.text("DISABLE_STATS") == "" {
			c.now = Value{Name: "USE_STATSD", At: "default"}
			c.todo(noStatsd)
		}
		err := c.readRules()
		c.now = Value{}
		c.found(nil)
		return err
	},
}

func ratelimitTLS(c *conversion, v string) error {
	yes, err := boolean(v)
	if err != nil || !yes {
		return err
	}
	cert, key := c.text("GRPC_SERVER_TLS_CERT"), c.text("GRPC_SERVER_TLS_KEY")
	if cert == "" || key == "" {
		return fmt.Errorf("is true, and GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY are not both given")
	}
	c.set("tls-cert", cert)
	c.set("tls-key", key)
	if ca := c.text("GRPC_CLIENT_TLS_CACERT"); ca != "" {
		c.set("tls-client-ca", ca)
		c.set("tls-client-auth", "require")
	}
	c.todo("the HTTP port has TLS too: probes and Prometheus need https")
	return nil
}

func ratelimitConfig(c *conversion, v string) error {
	switch v {
	case "FILE":
		c.skip("it is the default")
	case "GRPC_XDS_SOTW":
		c.todo(noXDS)
	default:
		return fmt.Errorf("%q is neither FILE nor GRPC_XDS_SOTW", v)
	}
	return nil
}

func ratelimitRules(c *conversion, v string) error {
	if c.text("CONFIG_TYPE") == "GRPC_XDS_SOTW" {
		c.set("rules", "rules")
		return nil
	}
	app := c.text("RUNTIME_APPDIRECTORY")
	if app == "" {
		app = "config"
	}
	c.set("rules", filepath.ToSlash(filepath.Join(v, c.text("RUNTIME_SUBDIRECTORY"), app)))
	return nil
}

// ratelimitShadow is for both settings by which no request is over its limit. readRules writes the files.
func ratelimitShadow(c *conversion, v string) error {
	yes, err := boolean(v)
	if yes && c.options.Rules == "" {
		c.todo("each rule needs shadow_mode: true; give --runtime with the rule files, and they are written here")
	} else if yes {
		c.todo("use the rule files below, in which each rule has shadow_mode: true")
	}
	return err
}

func ratelimitTraces(c *conversion, v string) error {
	yes, err := boolean(v)
	if err != nil || !yes {
		return err
	}
	protocol := c.text("TRACING_EXPORTER_PROTOCOL")
	if protocol == "" {
		protocol = "http"
	}
	if endpoint := c.text("OTEL_EXPORTER_OTLP_ENDPOINT"); endpoint != "" {
		c.traces(endpoint, protocol)
	} else {
		c.todo("give the collector's address with --otlp-endpoint")
	}
	if c.text("TRACING_SAMPLING_RATE") == "" {
		c.set("trace-sample", "1")
	}
	return nil
}

func ratelimitSampling(c *conversion, v string) error {
	if yes, _ := boolean(c.text("TRACING_ENABLED")); !yes {
		return nil
	}
	return share("trace-sample")(c, v)
}
