module github.com/sluicecluster/sluice/internal/leaf

go 1.26.0
