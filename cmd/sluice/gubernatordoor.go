package main

import (
	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/transport/gubernator"
)

// openGubernatorDoor makes what answers clients of gubernator, and puts its service on
// the gRPC port, which must not serve yet.
func (n *node) openGubernatorDoor(services grpc.ServiceRegistrar) (err error) {
	n.gubernatorDoor, err = gubernator.New(gubernator.Config{Limiter: n.service, Guard: n.guard, Leaving: n.draining.Load, Tracing: n.spans != nil})
	if err == nil {
		n.gubernatorDoor.Register(services)
	}
	return err
}
