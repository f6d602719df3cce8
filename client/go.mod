module github.com/sluicecluster/sluice/client

go 1.26.0

require (
	github.com/hashicorp/golang-lru/v2 v2.0.7
	github.com/sluicecluster/sluice/internal/leaf v0.0.0
	github.com/sluicecluster/sluice/proto v0.0.0
	golang.org/x/time v0.16.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260414002931-afd174a4e478
	google.golang.org/grpc v1.82.2
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.53.0 // indirect
	golang.org/x/sys v0.43.0 // indirect
	golang.org/x/text v0.36.0 // indirect
)

replace (
	github.com/sluicecluster/sluice/internal/leaf => ../internal/leaf
	github.com/sluicecluster/sluice/proto => ../proto
)
