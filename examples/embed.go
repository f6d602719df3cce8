// Package examples has the example rules, for sluice demo.
package examples

import "embed"

// Rules has the folder rules.
//
//go:embed rules/*.yaml
var Rules embed.FS
