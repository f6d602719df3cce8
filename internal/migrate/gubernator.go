package migrate

const (
	headless = "--join takes the name of a headless Service with publishNotReadyAddresses, as in deploy/k8s"
	otelGRPC = "traces are sent over gRPC, which collectors serve at another port than HTTP, usually 4317"
)

// Gubernator has the settings of gubernator v2.21.0.
var Gubernator = &Product{Name: "gubernator", Title: "gubernator 2.21", settings: []setting{
	{"GUBER_GRPC_ADDRESS", converted, "localhost:1051", address("bind", "grpc-port"), "--bind, --grpc-port"},
	{"GUBER_HTTP_ADDRESS", converted, "localhost:1050", address("bind", "http-port"), "--bind, --http-port"},
	{"GUBER_STATUS_HTTP_ADDRESS", needless, "", nil, "/healthz and /readyz of the HTTP port ask for no client certificate"},
	{"GUBER_ADVERTISE_ADDRESS GUBER_MEMBERLIST_ADVERTISE_ADDRESS GUBER_ETCD_ADVERTISE_ADDRESS", converted, "", address("advertise"), "--advertise, without a port"},
	{"GUBER_K8S_POD_IP", converted, "", host("advertise"), "--advertise"},
	{"GUBER_MEMBERLIST_NODE_NAME GUBER_INSTANCE_ID", converted, "", same("name"), "--name, the same after a restart"},
	{"GUBER_CACHE_SIZE", converted, "", twice("max-entries"), "--max-entries, doubled for replicas; --memory-limit alone is better"},
	{"GUBER_WORKER_COUNT GUBER_RESOLV_CONF", needless, "", nil, "as the system has it"},
	{"GUBER_DATA_CENTER GUBER_ETCD_DATA_CENTER", missing, "", nil, "run a cluster in each region, with --region and --regions"},
	{"GUBER_GRPC_MAX_CONN_AGE_SEC", missing, "0", nil, "connections are kept; a proxy or the Go client follows new nodes"},
	{"GUBER_GRACEFUL_TERMINATION_DELAY_SEC", missing, "0", nil, "a preStop sleep, as in deploy/k8s"},
	{"GUBER_METRIC_FLAGS", needless, "", nil, "these metrics are always there"},
	{"GUBER_HTTP_RETRY_COUNT", needless, "", nil, "the healthcheck program is `sluice health`"},
	{"GUBER_LOG_LEVEL", converted, "", logLevel, "--log-level"},
	{"GUBER_LOG_FORMAT", converted, "", choice("log-format", "text", "text", "json", "json"), "--log-format"},
	{"GUBER_DEBUG", converted, "", yes(fixed("log-level", "debug")), "--log-level debug"},
	{"GUBER_BATCH_TIMEOUT GUBER_GLOBAL_TIMEOUT", needless, "", nil, "--check-timeout; its default lasts until a lost node is replaced"},
	{"GUBER_BATCH_LIMIT GUBER_BATCH_WAIT GUBER_DISABLE_BATCHING", needless, "", nil, "batches form by load, without a timer"},
	{"GUBER_GLOBAL_BATCH_LIMIT GUBER_GLOBAL_SYNC_WAIT GUBER_FORCE_GLOBAL", needless, "", nil, "GLOBAL is exact, by leases"},
	{"GUBER_SCHEDULE_MAX_WAIT", missing, "5m", nil, "max_wait is ignored: the check is over its limit at once; sluice's own API has leaky_queue"},
	{"GUBER_TLS_CERT", converted, "", all(same("tls-cert"), beside("GUBER_TLS_CA", same("peer-tls-cert"))), "--tls-cert; with GUBER_TLS_CA also --peer-tls-cert"},
	{"GUBER_TLS_KEY", converted, "", all(same("tls-key"), beside("GUBER_TLS_CA", same("peer-tls-key"))), "--tls-key, --peer-tls-key"},
	{"GUBER_TLS_CLIENT_AUTH_CA_CERT", converted, "", beside("GUBER_TLS_CLIENT_AUTH", same("tls-client-ca")), "--tls-client-ca"},
	{"GUBER_TLS_CA", converted, "", all(same("peer-tls-ca"), beside("GUBER_TLS_CLIENT_AUTH", same("tls-client-ca")), remark("--peer-tls-cert must be for the DNS name that is the node's --name, or for that of --peer-tls-name")), "--peer-tls-ca; --tls-client-ca if there is no other"},
	{"GUBER_TLS_CLIENT_AUTH", converted, "", choice("tls-client-auth", "request-cert", "request", "verify-cert", "request", "require-any-cert", "require", "require-and-verify", "require"), "--tls-client-auth; certificates are always verified"},
	{"GUBER_TLS_CLIENT_AUTH_KEY GUBER_TLS_CLIENT_AUTH_CERT", needless, "", nil, "a node shows other nodes --peer-tls-cert"},
	{"GUBER_TLS_CLIENT_AUTH_SERVER_NAME", converted, "", same("peer-tls-name"), "--peer-tls-name"},
	{"GUBER_TLS_MIN_VERSION", converted, "", choice("tls-min-version", "1.0", "1.2", "1.1", "1.2", "1.2", "1.2", "1.3", "1.3"), "--tls-min-version, 1.2 or 1.3"},
	{"GUBER_TLS_CA_KEY", missing, "", nil, "`sluice cert` makes certificates, not the nodes"},
	{"GUBER_TLS_AUTO GUBER_TLS_INSECURE_SKIP_VERIFY", missing, "false", nil, "`sluice cert` makes a CA, and a certificate for each node"},
	{"GUBER_PEER_DISCOVERY_TYPE", converted, "", choice("", "member-list", "", "k8s", "", "dns", "", "etcd", "", "none", ""), "--join, with the nodes' addresses or DNS names"},
	{"GUBER_MEMBERLIST_KNOWN_NODES GUBER_DNS_FQDN", converted, "", joins, "--join, without ports, and --bootstrap-expect"},
	{"GUBER_K8S_SERVICE_NAME", converted, "", all(joins, remark(headless)), headless},
	{"GUBER_K8S_NAMESPACE GUBER_K8S_POD_PORT GUBER_K8S_SELECTOR GUBER_K8S_ENDPOINTS_SELECTOR GUBER_K8S_WATCH_MECHANISM", needless, "", nil, headless},
	{"GUBER_MEMBERLIST_BIND_ADDRESS GUBER_MEMBERLIST_ADDRESS", converted, "", address("bind", "gossip-port"), "--gossip-port"},
	{"GUBER_MEMBERLIST_SECRET_KEYS GUBER_MEMBERLIST_GOSSIP_VERIFY_INCOMING GUBER_MEMBERLIST_GOSSIP_VERIFY_OUTGOING", needless, "", nil, "gossip is encrypted by --secret-file, or by --gossip-keyring"},
	{"GUBER_ETCD_ENDPOINTS GUBER_ETCD_KEY_PREFIX GUBER_ETCD_DIAL_TIMEOUT GUBER_ETCD_USER GUBER_ETCD_PASSWORD GUBER_ETCD_TLS_ENABLE GUBER_ETCD_TLS_EABLED GUBER_ETCD_TLS_CERT GUBER_ETCD_TLS_KEY GUBER_ETCD_TLS_CA GUBER_ETCD_TLS_SKIP_VERIFY", needless, "", nil, "nodes find each other by gossip, without etcd"},
	{"GUBER_PEER_PICKER GUBER_PEER_PICKER_HASH GUBER_REPLICATED_HASH_REPLICAS", needless, "", nil, "all nodes build the same ring"},
	{"GUBER_TRACING_LEVEL", needless, "", nil, "a trace has one level"},
	{"OTEL_EXPORTER_OTLP_ENDPOINT", converted, "", same("otlp-endpoint"), "--otlp-endpoint"},
	{"OTEL_EXPORTER_OTLP_PROTOCOL", missing, "grpc", nil, otelGRPC},
	{"OTEL_TRACES_SAMPLER", converted, "", choice("trace-sample", "always_on", "1", "parentbased_always_on", "1", "always_off", "0", "parentbased_always_off", "0", "traceidratio", "", "parentbased_traceidratio", ""), "--trace-sample; --trace-callers for traced clients"},
	{"OTEL_TRACES_SAMPLER_ARG", converted, "", same("trace-sample"), "--trace-sample"},
	{"OTEL_SERVICE_NAME OTEL_EXPORTER_OTLP_CERTIFICATE OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE OTEL_EXPORTER_OTLP_CLIENT_KEY OTEL_EXPORTER_OTLP_HEADERS", needless, "", nil, "sluice reads the same variable"},
}}
