module github.com/sluice-project/sluice/internal/leaf

go 1.26.0
