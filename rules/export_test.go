package rules

import _ "embed"

// Schema is schema.json, the JSON Schema (draft 2020-12) of rule files.
//
//go:embed schema.json
var Schema string
