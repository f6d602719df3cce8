package main

import (
	"strings"
	"testing"
)

// TestRegionFlags: which lists of regions are valid, and which mistakes name which flag.
func TestRegionFlags(t *testing.T) {
	const tls = " --peer-tls-cert c --peer-tls-key k --peer-tls-ca a"
	const beyond = "--region eu --bind 192.0.2.1 --bootstrap-expect 1 --secret-file s --regions us=10.0.0.1,10.0.0.2,ap=ap.example:99"
	for _, c := range []struct{ args, want string }{
		{"--region eu --regions us=127.0.0.1:1,localhost:2,ap=127.0.0.2", ""},
		{"--region eu --regions eu=127.0.0.9,us=127.0.0.1:1", ""},
		{"--region eu --regions us=127.0.0.1:1 --regions ap=127.0.0.1:2", ""},
		{"--region eu", "--regions: missing beside --region=eu"},
		{"--regions us=127.0.0.1:1", "--region: missing beside --regions"},
		{"--region EU --regions us=127.0.0.1:1", `--region: "EU": want 1 to 63 of a-z, 0-9 and -`},
		{"--region eu --regions eu=127.0.0.1", `--regions: no region but this one, "eu"`},
		{"--region eu --regions us=127.0.0.1:1,us=127.0.0.1:2", `--regions: region "us" is given twice`},
		{"--region eu --regions us=127.0.0.1:99999", `--regions: address "127.0.0.1:99999": port "99999"`},
		{beyond + tls, ""},
		{beyond, "--peer-tls: is not require, and connections to other regions cross networks"},
		{beyond + tls + " --peer-tls accept", "--peer-tls: is not require"},
		{beyond + " --insecure region-tls", ""},
		{"--region eu --regions us=us.example", "--peer-tls: is not require"},
		{"--region eu --regions us=us.example --insecure region-tls", ""},
	} {
		s, _ := parsed(t, strings.Fields(c.args)...)
		if err := s.validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.args, err, c.want)
		}
	}
	s, f := parsed(t, "--config", writeFile(t, "region: eu\nregions: [us=127.0.0.1:1, \"127.0.0.2:1\", ap=127.0.0.3]\n"))
	if err := settle(f, fromMap(nil)); err != nil || s.validate() != nil || strings.Join(s.Regions, " ") != "us=127.0.0.1:1 127.0.0.2:1 ap=127.0.0.3" {
		t.Errorf("from a file: %v, %q", err, s.Regions)
	}
	s, f = parsed(t)
	if err := settle(f, fromMap(map[string]string{"SLUICE_REGION": "eu", "SLUICE_REGIONS": "us=127.0.0.1:1"})); err != nil || s.validate() != nil || s.Region != "eu" {
		t.Errorf("from the environment: %v, %q", err, s.Regions)
	}
}
