module github.com/sluicecluster/sluice/test/connect

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/sluicecluster/sluice/client v0.0.0
	google.golang.org/protobuf v1.36.12
)

require github.com/sluicecluster/sluice/internal/leaf v0.0.0 // indirect

replace (
	github.com/sluicecluster/sluice/client => ../../client
	github.com/sluicecluster/sluice/internal/leaf => ../../internal/leaf
	github.com/sluicecluster/sluice/proto => ../../proto
)
