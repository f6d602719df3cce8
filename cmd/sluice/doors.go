package main

import (
	"context"
	"net/http"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/shed"
	"github.com/sluice-project/sluice/limiter"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
	"github.com/sluice-project/sluice/transport/envoy"
	"github.com/sluice-project/sluice/transport/grpcapi"
	"github.com/sluice-project/sluice/transport/httpapi"
)

// openDoors makes what answers clients.
func (n *node) openDoors() error {
	hasher, err := limiter.NewHasher(n.counters)
	if err != nil {
		return err
	}
	if n.gate, err = shed.New(shed.Config{MaxCalls: n.settings.bounds.maxCalls, MaxWait: n.settings.bounds.maxWait}); err != nil {
		return err
	}
	n.waits, n.clock = new(waits).next, n.cluster.Now
	n.service, err = limiter.New(limiter.Config{
		Gate: n.gate, InlineLimits: n.settings.part(16<<10, bucket.DefaultMaxSets),
		Decider: n.cluster, Cluster: n.overview, Forget: n.forget, Bootstrap: n.bootstrap, AcceptLoss: n.acceptLoss, Hasher: hasher,
		SpreadLoad: n.spreadLoad,
		Tracer:     n.spans.trace(),
		TopKeys:    topKeys[n.settings.topKeys],
		AskTop: func(ctx context.Context, q limiter.TopQuery) ([]limiter.NodeTop, []string) {
			return n.inquiries.top(ctx, q)
		},
		KeyFacts: n.cluster.KeyFacts,
		AskKeyFacts: func(ctx context.Context, key bucket.Key, limits *bucket.Limits) ([]facts.Key, []string) {
			return n.inquiries.keyFacts(ctx, key, limits)
		},
		RefuseUnknownDomains: n.settings.unknownDomain == "error", InlineEntries: n.settings.bounds.maxInlineEntries,
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
		MaxUnread: n.settings.part(8, 128<<20),
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
		Limiter: n.service, Guard: n.guard, Ready: n.ready, RulesError: n.rulesError, RulesSkipped: n.rulesSkipped, Metrics: n.metricsHandler(),
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
	if handler, err = n.beforeOthers(httpapi.OwnPages(n.settings.admin.hosts, handler)); err != nil {
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
func (n *node) withOtherDoors(api http.Handler, mountConsole func(*http.ServeMux)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", api)
	n.gubernatorDoor.Mount(mux)
	mountConsole(mux)
	return mux
}
