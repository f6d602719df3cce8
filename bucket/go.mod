module github.com/sluicecluster/sluice/bucket

go 1.26.0

require (
	github.com/sluicecluster/sluice/internal/leaf v0.0.0
	pgregory.net/rapid v1.3.0
)

replace github.com/sluicecluster/sluice/internal/leaf => ../internal/leaf
