package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Whatever a --config file says, it sets flags or is rejected with the flag's and the file's name.
func FuzzConfigFile(f *testing.F) {
	f.Add("check-timeout: 200ms\njoin: [a, b]\n")
	f.Add("name: n1\nname: n2\n")
	f.Add("config: other\n")
	f.Add("max-entries: {a: 1}\n")
	f.Add("a: &a [*a]\n")
	f.Add("<<: {name: x}\n")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		do(t, os.WriteFile(path, []byte(text), 0o600))
		var s settings
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		s.register(flags)
		do(t, flags.Set("config", path))
		if err := settle(flags, func(string) (string, bool) { return "", false }); err != nil {
			if !strings.Contains(err.Error(), "--config: ") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		_ = s.validate() // whatever values: it must not panic
	})
}

// A --spec is a limit that can be audited, or an error.
func FuzzAuditSpec(f *testing.F) {
	f.Add("algorithm=token_bucket,limit=50,period=1s,keys=100")
	f.Add("descriptor=user,align=epoch,burst=3")
	f.Add("limit=1,limit=2")
	f.Add("=,=")
	f.Fuzz(func(t *testing.T, text string) {
		var defaults auditSpec
		defaults.register(pflag.NewFlagSet("audit", pflag.ContinueOnError))
		spec, err := defaults.parse(text)
		if err != nil {
			if err.Error() == "" {
				t.Errorf("%q: an error without words", text)
			}
			return
		}
		if spec.Descriptor == "" && !strings.Contains(text, "descriptor") {
			t.Errorf("%q: no descriptor in %+v", text, spec)
		}
	})
}
