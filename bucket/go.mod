module github.com/sluice-project/sluice/bucket

go 1.26.0

require (
	github.com/sluice-project/sluice/internal/leaf v0.0.0
	pgregory.net/rapid v1.3.0
)

replace github.com/sluice-project/sluice/internal/leaf => ../internal/leaf
