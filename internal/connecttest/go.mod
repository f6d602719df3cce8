module github.com/sluice-project/sluice/internal/connecttest

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/sluice-project/sluice v0.0.0
	google.golang.org/protobuf v1.36.12
)

replace github.com/sluice-project/sluice => ../..
