package node

import (
	"log/slog"
	"net/http"
	"os"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/internal/shed"
	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/console"
	"github.com/sluicecluster/sluice/transport/deadline"
	"github.com/sluicecluster/sluice/transport/envoy"
	"github.com/sluicecluster/sluice/transport/forwardauth"
	"github.com/sluicecluster/sluice/transport/grpcapi"
	"github.com/sluicecluster/sluice/transport/gubernator"
	"github.com/sluicecluster/sluice/transport/httpapi"
	"github.com/sluicecluster/sluice/transport/watch"
)

// openLimiter makes the limiter, and puts the rules into force.
func (n *Node) openLimiter() error {
	hasher, err := limiter.NewHasher(n.counters)
	if err != nil {
		return err
	}
	if n.gate, err = shed.New(shed.Config{MaxCalls: n.config.Bounds.MaxCalls, MaxWait: n.config.Bounds.MaxWait}); err != nil {
		return err
	}
	n.schedLoad, n.clock = new(schedMetrics).next, n.cluster.Now
	n.queries = newPeerQueries(n.cluster.Others, n.peers.Query)
	n.service, err = limiter.New(limiter.Config{
		Decider: n.cluster, Cluster: limiterCluster{n, n.queries}, TopKeys: topKeys[n.config.TopKeys], Callers: n.guard.Callers,
		Hasher: hasher, Gate: n.gate, Log: n.log, Tracer: n.spans.trace(), RejectUnknownDomains: n.config.UnknownDomain == "error",
		InlineLimits: n.config.part(16<<10, bucket.DefaultMaxSets), InlineEntries: n.config.Bounds.MaxInlineEntries,
		Account: n.table.Account, SetsFull: n.table.SetsFull, MaxWait: n.config.CheckTimeout,
	})
	if err != nil {
		return err
	}
	n.cluster.OnFreed(n.service.Wake)
	n.cluster.SetLostLimits(nil)
	if n.rules != nil {
		n.useRules(n.rules.Current())
		n.rules.OnChange(n.useRules)
	}
	return nil
}

// openAPIs makes the servers of the APIs.
func (n *Node) openAPIs() error {
	if err := n.openGRPC(); err != nil {
		return err
	}
	api, err := httpapi.New(httpapi.Config{
		Limiter: n.service, Guard: n.guard, Ready: n.Ready, RulesError: n.rulesError, RulesSkipped: n.rulesSkipped, Regions: n.regionWarnings, Metrics: n.metricsHandler(),
		CheckTimeout: n.config.CheckTimeout, Memory: n.messages,
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	n.gubernatorAPI.Mount(mux)
	if err := n.mountConsole(mux); err != nil {
		return err
	}
	n.serveOperators(mux)
	n.metrics = httpapi.NewServer(httpapi.OwnPages(n.config.Admin.Hosts, httpapi.Only(api, "/healthz", "/readyz", "/metrics")))
	n.metrics.ErrorLog = slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)
	proxies, err := forwardauth.New(forwardauth.Config{
		Limiter: n.service, Guard: n.guard, Authorize: n.authorize, Leaving: n.draining.Load, AssumeDeadline: n.config.assumed().ForwardAuth,
	})
	if err != nil {
		return err
	}
	// Forward auth stands before the check of browsers' headers and of paths: its requests carry those of other requests.
	handler := proxies.Before(deadline.HTTP(httpapi.OwnPages(n.config.Admin.Hosts, mux)))
	n.httpServer = httpapi.NewServer(httpapi.Shed(handler, isCheck, n.gate.Admit))
	n.withTLS(n.httpServer)
	return nil
}

// openGRPC makes the server of the gRPC port with all its services.
func (n *Node) openGRPC() (err error) {
	traced := n.spans != nil
	limit, _ := n.config.memoryLimit() // validated
	n.messages = inflow.NewMemory(limit)
	n.grpcAPI, err = grpcapi.New(grpcapi.Config{
		Limiter: n.service, Guard: n.guard, Reasons: func() []string { _, reasons := n.Ready(); return reasons }, Tracing: traced, CheckTimeout: n.config.CheckTimeout, Admit: n.gate.Admit, Methods: otherMethods, Log: n.log,
		MaxUnread: n.config.part(8, 128<<20), Memory: n.messages, MaxAge: n.config.GRPCMaxConnectionAge,
	})
	if err != nil {
		return err
	}
	options := n.grpcAPI.Options(n.grpcCreds())
	if wait := n.config.assumed().Envoy; wait > 0 {
		options = append(options, grpc.ChainUnaryInterceptor(deadline.Unary(wait, func(method string) bool {
			return method == envoy.Method || method == envoy.CheckRateLimitMethod // what is charged afterwards may take its time
		})))
	}
	n.grpcServer = grpc.NewServer(options...)
	services := n.grpcAPI.Register(n.grpcServer)
	n.gubernatorAPI, err = gubernator.New(gubernator.Config{Limiter: n.service, Guard: n.guard, Leaving: n.draining.Load, Tracing: traced, Memory: n.messages})
	if err != nil {
		return err
	}
	n.gubernatorAPI.Register(services)
	rls, err := envoy.New(envoy.Config{
		Limiter: n.service, Guard: n.guard, Admit: n.gate.Admit, Tracing: traced,
		AllOrNothing: n.config.EnvoyAllOrNothing, ResponseHeaders: n.config.EnvoyResponseHeaders, DynamicMetadata: n.config.EnvoyDynamicMetadata,
	})
	if err == nil {
		rls.Register(services)
	}
	return err
}

// otherMethods are those of the gRPC port beside sluice.v1. Under overload Envoy's checks are decided by their rules' on_failure, since
// Envoy may let rejected ones pass. Load balancers call gubernator's health methods.
var otherMethods = map[string]grpcapi.Method{
	envoy.Method:                                 {API: limiter.EnvoyAPI},
	envoy.CheckRateLimitMethod:                   {API: limiter.EnvoyAPI},
	envoy.ReportMethod:                           {API: limiter.EnvoyAPI},
	envoy.ReserveMethod:                          {API: limiter.EnvoyAPI},
	envoy.CommitMethod:                           {API: limiter.EnvoyAPI},
	gubernatorv1.V1_GetRateLimits_FullMethodName: {API: limiter.GubernatorAPI, Shed: true},
	gubernatorv1.V1_HealthCheck_FullMethodName:   {API: limiter.GubernatorAPI, Public: true},
	gubernatorv1.V1_LiveCheck_FullMethodName:     {API: limiter.GubernatorAPI, Public: true},
}

// mountConsole makes the hub that watches the cluster, and mounts the console unless --console=false.
func (n *Node) mountConsole(mux *http.ServeMux) error {
	n.hub = watch.NewHub(watch.Config{
		Members: n.service.Members, Here: n.service.FactsHere, Others: n.queries.AskFacts, Top: n.service.Top,
	})
	if !n.config.Console {
		return nil
	}
	page, err := console.New(console.Config{Limiter: n.service, Hub: n.hub, Rules: n.service.Rules, Guard: n.guard, URL: n.consoleURL(), Command: n.consoleCommand(), Pod: pod(), Memory: n.messages})
	if err == nil {
		page.Mount(mux)
	}
	return err
}

// consoleURL is the URL of the HTTP port for browsers on this machine.
func (n *Node) consoleURL() string {
	scheme := "http"
	if n.tls.apis != nil {
		scheme = "https"
	}
	return scheme + "://" + reachable(n.listen.http)
}

// consoleCommand prints a login URL on the machine of the node.
func (n *Node) consoleCommand() string {
	command := "sluice console"
	if addr := reachable(n.listen.grpc); addr != "127.0.0.1:7460" {
		command += " --addr " + addr
	}
	return command
}

// pod is the name of the Kubernetes pod that this process is in, if it is in one.
func pod() string {
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return ""
	}
	name, _ := os.Hostname()
	return name
}

// authorize returns the checks of forward auth in a domain, by the rules in force.
func (n *Node) authorize(domain string) *rules.Authorize {
	if set := n.service.Rules(); set != nil {
		return set.Authorize(domain)
	}
	return nil
}
