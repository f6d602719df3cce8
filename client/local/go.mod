module github.com/sluicecluster/sluice/client/local

go 1.26.0

require (
	github.com/sluicecluster/sluice/bucket v0.0.0
	github.com/sluicecluster/sluice/client v0.0.0
	github.com/sluicecluster/sluice/rules v0.0.0
)

require (
	github.com/sluicecluster/sluice/internal/leaf v0.0.0 // indirect
	github.com/sluicecluster/sluice/internal/yamldoc v0.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace (
	github.com/sluicecluster/sluice/bucket => ../../bucket
	github.com/sluicecluster/sluice/client => ..
	github.com/sluicecluster/sluice/internal/leaf => ../../internal/leaf
	github.com/sluicecluster/sluice/internal/yamldoc => ../../internal/yamldoc
	github.com/sluicecluster/sluice/proto => ../../proto
	github.com/sluicecluster/sluice/rules => ../../rules
)
