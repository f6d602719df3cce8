// Command ratelimit is envoyproxy/ratelimit as its own main program starts it; it
// is configured through the environment. It is a module of its own, so that it
// runs with the dependencies that its authors chose.
package main

import (
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"
)

func main() {
	r := runner.NewRunner(settings.NewSettings())
	r.Run()
}
