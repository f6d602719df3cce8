package migrate

import "slices"

const (
	noEtcd    = "nodes find each other by gossip, without etcd"
	adaptive  = "forwarded checks are batched by load, without a timer"
	exact     = "GLOBAL is exact here, with leases instead of broadcasts"
	ownRing   = "the ring is that of all nodes of sluice"
	sameOTel  = "sluice reads the same variable"
	headless  = "--join takes the name of a headless Service, as deploy/k8s has one; no access to the Kubernetes API is needed"
	tlsNotice = "--tls-cert and --peer-tls-cert; files are read again when they change"
)

// Gubernator has the settings of gubernator v2.21.0.
var Gubernator = &Product{
	Name: "gubernator", Title: "gubernator 2.21", Prefix: "GUBER_",
	settings: []setting{
		{"GUBER_GRPC_ADDRESS", converted, "localhost:1051", address("bind", "grpc-port"), "--bind and --grpc-port"},
		{"GUBER_HTTP_ADDRESS", converted, "localhost:1050", address("bind", "http-port"), "--bind and --http-port"},
		{"GUBER_STATUS_HTTP_ADDRESS", needless, "", nil, "/healthz and /readyz of the HTTP port want no client certificate"},
		{"GUBER_ADVERTISE_ADDRESS GUBER_MEMBERLIST_ADVERTISE_ADDRESS GUBER_ETCD_ADVERTISE_ADDRESS", converted, "", address("advertise", ""), "--advertise, an IP address without a port"},
		{"GUBER_K8S_POD_IP", converted, "", host("advertise"), "--advertise"},
		{"GUBER_MEMBERLIST_NODE_NAME GUBER_INSTANCE_ID", converted, "", same("name"), "--name; it must be the same after a restart"},
		{"GUBER_CACHE_SIZE", converted, "", whole("max-entries", 2), "--max-entries, twice as many because of replicas; better leave it out and set --memory-limit"},
		{"GUBER_WORKER_COUNT", needless, "", nil, "counters are in 1,021 partitions, decided by as many cores as there are"},
		{"GUBER_DATA_CENTER GUBER_ETCD_DATA_CENTER", missing, "", nil, "a cluster is one region: run a cluster in each, and give --zone to nodes in zones of one region"},
		{"GUBER_GRPC_MAX_CONN_AGE_SEC", missing, "0", nil, "connections are kept; new nodes get traffic from clients and proxies that resolve names again, or from the Go client, which follows members"},
		{"GUBER_GRACEFUL_TERMINATION_DELAY_SEC", missing, "0", nil, "a preStop sleep, as in deploy/k8s; --shutdown-timeout and --handover-timeout bound the stop itself"},
		{"GUBER_METRIC_FLAGS", needless, "", nil, "metrics of the process and of Go are always there"},
		{"GUBER_HTTP_RETRY_COUNT", needless, "", nil, "`sluice health` takes the place of the healthcheck program, with --timeout"},
		{"GUBER_LOG_LEVEL", converted, "", logLevel, "--log-level: debug, info, warn or error"},
		{"GUBER_LOG_FORMAT", converted, "", logFormat, "--log-format"},
		{"GUBER_DEBUG", converted, "", when("log-level", "debug"), "--log-level debug if it is true"},

		{"GUBER_BATCH_TIMEOUT GUBER_GLOBAL_TIMEOUT", needless, "", nil, "--check-timeout bounds a check; its 1.5s lasts until another node has taken over a lost one"},
		{"GUBER_BATCH_LIMIT GUBER_BATCH_WAIT GUBER_DISABLE_BATCHING", needless, "", nil, adaptive},
		{"GUBER_GLOBAL_BATCH_LIMIT GUBER_GLOBAL_SYNC_WAIT GUBER_FORCE_GLOBAL", needless, "", nil, exact},
		{"GUBER_SCHEDULE_MAX_WAIT", missing, "5m", nil, "max_wait of a request is ignored, and the check is over its limit at once; sluice's own API has leaky_queue for this"},

		{"GUBER_TLS_CERT GUBER_TLS_KEY", converted, "", gubernatorTLS, tlsNotice},
		{"GUBER_TLS_CA", converted, "", gubernatorCA, "--peer-tls-ca; also --tls-client-ca if clients show certificates and no other CA is given"},
		{"GUBER_TLS_CA_KEY", missing, "", nil, "nodes make no certificates: `sluice cert` makes them before"},
		{"GUBER_TLS_AUTO", missing, "false", nil, "nodes make no certificates: `sluice cert` makes a CA and a certificate for each node"},
		{"GUBER_TLS_MIN_VERSION", converted, "", choice("tls-min-version", "1.0", "1.2", "1.1", "1.2", "1.2", "1.2", "1.3", "1.3"), "--tls-min-version; 1.2 is the oldest"},
		{"GUBER_TLS_CLIENT_AUTH_CA_CERT", converted, "", same("tls-client-ca"), "--tls-client-ca"},
		{"GUBER_TLS_CLIENT_AUTH", converted, "", choice("tls-client-auth", "request-cert", "request", "verify-cert", "request", "require-any-cert", "require", "require-and-verify", "require"), "--tls-client-auth request or require; a certificate that is shown must be valid with both"},
		{"GUBER_TLS_CLIENT_AUTH_KEY GUBER_TLS_CLIENT_AUTH_CERT", needless, "", nil, "a node shows other nodes --peer-tls-cert"},
		{"GUBER_TLS_CLIENT_AUTH_SERVER_NAME", converted, "", same("peer-tls-name"), "--peer-tls-name"},
		{"GUBER_TLS_INSECURE_SKIP_VERIFY", missing, "false", nil, "nodes always verify each other: `sluice cert` makes certificates that fit"},

		{"GUBER_PEER_DISCOVERY_TYPE", converted, "", gubernatorDiscovery, "--join, with names or addresses of nodes, of a headless Service for example"},
		{"GUBER_MEMBERLIST_KNOWN_NODES", converted, "", joins, "--join, without ports, and --bootstrap-expect"},
		{"GUBER_MEMBERLIST_BIND_ADDRESS GUBER_MEMBERLIST_ADDRESS", converted, "", address("bind", "gossip-port"), "--gossip-port"},
		{"GUBER_MEMBERLIST_SECRET_KEYS GUBER_MEMBERLIST_GOSSIP_VERIFY_INCOMING GUBER_MEMBERLIST_GOSSIP_VERIFY_OUTGOING", needless, "", nil, "gossip is encrypted with keys made of --secret-file, or those of --gossip-keyring"},
		{"GUBER_DNS_FQDN", converted, "", joins, "--join"},
		{"GUBER_RESOLV_CONF", needless, "", nil, "names are resolved as the system does"},
		{"GUBER_K8S_SERVICE_NAME", converted, "", kubernetesService, headless},
		{"GUBER_K8S_NAMESPACE GUBER_K8S_POD_PORT GUBER_K8S_SELECTOR GUBER_K8S_ENDPOINTS_SELECTOR GUBER_K8S_WATCH_MECHANISM", needless, "", nil, headless},
		{"GUBER_ETCD_ENDPOINTS GUBER_ETCD_KEY_PREFIX GUBER_ETCD_DIAL_TIMEOUT GUBER_ETCD_USER GUBER_ETCD_PASSWORD", needless, "", nil, noEtcd},
		{"GUBER_ETCD_TLS_ENABLE GUBER_ETCD_TLS_EABLED GUBER_ETCD_TLS_CERT GUBER_ETCD_TLS_KEY GUBER_ETCD_TLS_CA GUBER_ETCD_TLS_SKIP_VERIFY", needless, "", nil, noEtcd},
		{"GUBER_PEER_PICKER GUBER_PEER_PICKER_HASH GUBER_REPLICATED_HASH_REPLICAS", needless, "", nil, ownRing},

		{"GUBER_TRACING_LEVEL", needless, "", nil, "a trace has one span for each step of a check"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", converted, "", gubernatorTraces, "--otlp-endpoint, over gRPC"},
		{"OTEL_TRACES_SAMPLER", converted, "", gubernatorSampler, "--trace-sample, and --trace-callers for traced clients"},
		{"OTEL_TRACES_SAMPLER_ARG", needless, "", nil, "--trace-sample has it, if the sampler takes a ratio"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", needless, "", nil, "traces are sent over gRPC"},
		{"OTEL_SERVICE_NAME OTEL_EXPORTER_OTLP_CERTIFICATE OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE OTEL_EXPORTER_OTLP_CLIENT_KEY OTEL_EXPORTER_OTLP_HEADERS", needless, "", nil, sameOTel},
	},
	finish: func(c *conversion) error {
		join := hosts(c.text("GUBER_MEMBERLIST_KNOWN_NODES"))
		join = append(join, hosts(c.text("GUBER_DNS_FQDN"))...)
		if service := c.text("GUBER_K8S_SERVICE_NAME"); service != "" {
			join = append(join, service)
		}
		c.found(slices.Compact(join))
		return nil
	},
}

// joins and the next two are settings that finish reads.
func joins(c *conversion, v string) error {
	c.skip("it is in --join: " + v)
	return nil
}

func kubernetesService(c *conversion, v string) error {
	c.todo("--join " + v + " needs a headless Service with publishNotReadyAddresses, as deploy/k8s has one")
	return nil
}

func gubernatorDiscovery(c *conversion, v string) error {
	switch v {
	case "etcd":
		c.todo("nodes do not register in etcd: give the addresses of all nodes with --join")
	case "member-list", "k8s", "dns", "none":
		c.skip("--join is made of the settings of " + v)
	default:
		return choice("", "member-list", "", "k8s", "", "dns", "", "etcd", "", "none", "")(c, v)
	}
	return nil
}

// gubernatorTLS sets the certificate or its key, for clients and, if there is a CA, for nodes.
func gubernatorTLS(c *conversion, v string) error {
	kind := "cert"
	if c.now.Name == "GUBER_TLS_KEY" {
		kind = "key"
	}
	c.set("tls-"+kind, v)
	if c.text("GUBER_TLS_CA") != "" {
		c.set("peer-tls-"+kind, v)
	}
	return nil
}

func gubernatorCA(c *conversion, v string) error {
	if c.text("GUBER_TLS_CERT") == "" {
		c.todo("--peer-tls-ca needs a certificate for each node beside it: `sluice cert` makes them")
		return nil
	}
	c.set("peer-tls-ca", v)
	if c.text("GUBER_TLS_CLIENT_AUTH") != "" && c.text("GUBER_TLS_CLIENT_AUTH_CA_CERT") == "" {
		c.set("tls-client-ca", v)
	}
	if c.text("GUBER_TLS_CLIENT_AUTH_SERVER_NAME") == "" {
		c.todo("--peer-tls-cert must be for the DNS name that is the node's --name, or for one given with --peer-tls-name; addresses in it do not count")
	}
	return nil
}

func gubernatorTraces(c *conversion, v string) error {
	c.traces(v, c.text("OTEL_EXPORTER_OTLP_PROTOCOL"))
	return nil
}

func gubernatorSampler(c *conversion, v string) error {
	switch v {
	case "always_on", "parentbased_always_on":
		c.set("trace-sample", "1")
	case "always_off", "parentbased_always_off":
		c.set("trace-sample", "0")
	case "traceidratio", "parentbased_traceidratio":
		if arg := c.text("OTEL_TRACES_SAMPLER_ARG"); arg != "" {
			return share("trace-sample")(c, arg)
		}
		c.set("trace-sample", "1")
	default:
		c.todo("is ignored: give --trace-sample, from 0 to 1")
	}
	return nil
}
