package node

import (
	"context"
	"net/http"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/shed"
	"github.com/sluice-project/sluice/limiter"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/console"
	"github.com/sluice-project/sluice/transport/envoy"
	"github.com/sluice-project/sluice/transport/forwardauth"
	"github.com/sluice-project/sluice/transport/grpcapi"
	"github.com/sluice-project/sluice/transport/gubernator"
	"github.com/sluice-project/sluice/transport/httpapi"
	"github.com/sluice-project/sluice/transport/watch"
)

// openDoors makes what answers clients.
func (n *Node) openDoors() error {
	hasher, err := limiter.NewHasher(n.counters)
	if err != nil {
		return err
	}
	if n.gate, err = shed.New(shed.Config{MaxCalls: n.config.Bounds.MaxCalls, MaxWait: n.config.Bounds.MaxWait}); err != nil {
		return err
	}
	n.waits, n.clock = new(waits).next, n.cluster.Now
	n.service, err = limiter.New(limiter.Config{
		Gate: n.gate, InlineLimits: n.config.part(16<<10, bucket.DefaultMaxSets),
		Decider: n.cluster, Cluster: n.overview, Forget: n.forget, Bootstrap: n.bootstrap, AcceptLoss: n.acceptLoss, Hasher: hasher,
		SpreadLoad: n.spreadLoad,
		Tracer:     n.spans.trace(),
		TopKeys:    topKeys[n.config.TopKeys],
		AskTop: func(ctx context.Context, q limiter.TopQuery) ([]limiter.NodeTop, []string) {
			return n.inquiries.top(ctx, q)
		},
		KeyFacts: n.cluster.KeyFacts,
		AskKeyFacts: func(ctx context.Context, key bucket.Key, limits *bucket.Limits) ([]facts.Key, []string) {
			return n.inquiries.keyFacts(ctx, key, limits)
		},
		RefuseUnknownDomains: n.config.UnknownDomain == "error", InlineEntries: n.config.Bounds.MaxInlineEntries,
		SetsFull: n.table.SetsFull,
	})
	if err != nil {
		return err
	}
	n.inquiries = newInquiries(n.cluster.Tell, n.cluster.TellOne, n.answerAsk)
	n.cluster.SetLostLimits(nil)
	if n.rules != nil {
		n.useRules(n.rules.Current())
		n.rules.OnChange(n.useRules)
	}
	n.grpcDoor, err = grpcapi.New(grpcapi.Config{
		Limiter: n.service, Guard: n.guard, Reasons: n.reasons, Tracing: n.spans != nil, Admit: n.gate.Admit, Methods: otherMethods, Log: n.log,
		MaxUnread: n.config.part(8, 128<<20),
	})
	if err != nil {
		return err
	}
	n.grpcServer = grpc.NewServer(n.grpcDoor.Options(0, n.grpcCreds())...)
	services := n.grpcDoor.Register(n.grpcServer)
	if err := n.openGubernatorDoor(services); err != nil {
		return err
	}
	if err := n.openEnvoyDoor(services); err != nil {
		return err
	}
	handler, err := httpapi.New(httpapi.Config{
		Limiter: n.service, Guard: n.guard, Ready: n.Ready, RulesError: n.rulesError, RulesSkipped: n.rulesSkipped, Metrics: n.metricsHandler(),
	})
	if err != nil {
		return err
	}
	mountConsole, err := n.openConsole()
	if err != nil {
		return err
	}
	handler = n.withOtherDoors(handler, mountConsole)
	n.serveOperators(handler)
	// Proxies that ask about their clients' requests pass on what browsers say of these.
	if handler, err = n.beforeOthers(httpapi.OwnPages(n.config.Admin.Hosts, handler)); err != nil {
		return err
	}
	n.httpServer = httpapi.NewServer(httpapi.Shed(handler, isCheck, n.gate.Admit))
	n.withTLS(n.httpServer)
	return nil
}

// otherMethods are those of the gRPC port beside sluice.v1. While the node is too busy, Envoy's are answered by their rules: it may pass what
// was turned away. Load balancers ask for gubernator's health.
var otherMethods = map[string]grpcapi.Method{
	envoy.Method: {Door: limiter.EnvoyDoor},
	gubernatorv1.V1_GetRateLimits_FullMethodName: {Door: limiter.GubernatorDoor, Shed: true},
	gubernatorv1.V1_HealthCheck_FullMethodName:   {Door: limiter.GubernatorDoor, Public: true},
	gubernatorv1.V1_LiveCheck_FullMethodName:     {Door: limiter.GubernatorDoor, Public: true},
}

// withOtherDoors puts the doors that answer on paths of their own before sluice's API.
func (n *Node) withOtherDoors(api http.Handler, mountConsole func(*http.ServeMux)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", api)
	n.gubernatorDoor.Mount(mux)
	mountConsole(mux)
	return mux
}

// openConsole makes the console's door, unless --console=false, and returns what puts it before sluice's API.
func (n *Node) openConsole() (mount func(*http.ServeMux), err error) {
	n.hub = watch.NewHub(watch.Config{
		Members: n.service.Members, Here: n.service.FactsHere, Others: n.inquiries.facts, Top: n.service.Top,
	})
	if !n.config.Console {
		return func(*http.ServeMux) {}, nil
	}
	door, err := console.New(console.Config{Limiter: n.service, Hub: n.hub, Rules: n.service.Rules, Guard: n.guard, URL: n.consoleURL()})
	if err != nil {
		return nil, err
	}
	return door.Mount, nil
}

// consoleURL is where browsers on this machine reach the HTTP port.
func (n *Node) consoleURL() string {
	scheme := "http"
	if n.tls.doors != nil {
		scheme = "https"
	}
	return scheme + "://" + reachable(n.listen.http)
}

// openEnvoyDoor makes what answers Envoy's rate limit filter, and puts its service on the
// gRPC port, which must not serve yet.
func (n *Node) openEnvoyDoor(services grpc.ServiceRegistrar) error {
	door, err := envoy.New(envoy.Config{
		Limiter:         n.service,
		Guard:           n.guard,
		Admit:           n.gate.Admit,
		Tracing:         n.spans != nil,
		AllOrNothing:    n.config.EnvoyAllOrNothing,
		ResponseHeaders: n.config.EnvoyResponseHeaders,
		DynamicMetadata: n.config.EnvoyDynamicMetadata,
	})
	if err == nil {
		door.Register(services)
	}
	return err
}

// beforeOthers puts the door for proxies that ask about each request before the other handlers of the
// HTTP port: paths below it are those of requests that others got, and come as they are.
func (n *Node) beforeOthers(others http.Handler) (http.Handler, error) {
	door, err := forwardauth.New(forwardauth.Config{Limiter: n.service, Guard: n.guard, Authorize: n.authorize, Leaving: n.draining.Load})
	if err != nil {
		return nil, err
	}
	return door.Before(others), nil
}

// authorize returns what is checked of requests in a domain, by the rules in force.
func (n *Node) authorize(domain string) *rules.Authorize {
	set := n.service.Rules()
	if set == nil {
		return nil
	}
	return set.Authorize(domain)
}

// openGubernatorDoor makes what answers clients of gubernator, and puts its service on
// the gRPC port, which must not serve yet.
func (n *Node) openGubernatorDoor(services grpc.ServiceRegistrar) (err error) {
	n.gubernatorDoor, err = gubernator.New(gubernator.Config{Limiter: n.service, Guard: n.guard, Leaving: n.draining.Load, Tracing: n.spans != nil})
	if err == nil {
		n.gubernatorDoor.Register(services)
	}
	return err
}
