module github.com/sluice-project/sluice/internal/connecttest

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/sluice-project/sluice/client v0.0.0
	google.golang.org/protobuf v1.36.12
)

require github.com/sluice-project/sluice/internal/leaf v0.0.0 // indirect

replace (
	github.com/sluice-project/sluice/client => ../../client
	github.com/sluice-project/sluice/internal/leaf => ../leaf
	github.com/sluice-project/sluice/proto => ../../proto
)
