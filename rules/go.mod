module github.com/sluicecluster/sluice/rules

go 1.26.0

require (
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	github.com/sluicecluster/sluice/bucket v0.0.0
	github.com/sluicecluster/sluice/internal/leaf v0.0.0
	github.com/sluicecluster/sluice/internal/yamldoc v0.0.0
	go.yaml.in/yaml/v3 v3.0.5
	pgregory.net/rapid v1.3.0
)

require golang.org/x/text v0.14.0 // indirect

replace (
	github.com/sluicecluster/sluice/bucket => ../bucket
	github.com/sluicecluster/sluice/internal/leaf => ../internal/leaf
	github.com/sluicecluster/sluice/internal/yamldoc => ../internal/yamldoc
)
