package main

import (
	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/transport/envoy"
)

// openEnvoyDoor makes what answers Envoy's rate limit filter, and puts its service on the
// gRPC port, which must not serve yet.
func (n *node) openEnvoyDoor(services grpc.ServiceRegistrar) error {
	door, err := envoy.New(envoy.Config{
		Limiter:         n.service,
		Guard:           n.guard,
		Admit:           n.gate.Admit,
		Tracing:         n.spans != nil,
		AllOrNothing:    n.settings.envoyAllOrNothing,
		ResponseHeaders: n.settings.envoyResponseHeaders,
		DynamicMetadata: n.settings.envoyDynamicMetadata,
	})
	if err == nil {
		door.Register(services)
	}
	return err
}
