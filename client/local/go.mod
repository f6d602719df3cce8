module github.com/sluice-project/sluice/client/local

go 1.26.0

require (
	github.com/sluice-project/sluice/bucket v0.0.0
	github.com/sluice-project/sluice/client v0.0.0
	github.com/sluice-project/sluice/rules v0.0.0
)

require (
	github.com/sluice-project/sluice/internal/leaf v0.0.0 // indirect
	github.com/sluice-project/sluice/internal/yamldoc v0.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace (
	github.com/sluice-project/sluice/bucket => ../../bucket
	github.com/sluice-project/sluice/client => ..
	github.com/sluice-project/sluice/internal/leaf => ../../internal/leaf
	github.com/sluice-project/sluice/internal/yamldoc => ../../internal/yamldoc
	github.com/sluice-project/sluice/proto => ../../proto
	github.com/sluice-project/sluice/rules => ../../rules
)
