package quorum_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
)

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*quorum.Config)
		want   string
	}{
		{func(c *quorum.Config) {}, ""},
		{func(c *quorum.Config) { c.Record.Set = set(1, "x") }, ""},
		{func(c *quorum.Config) { c.Self.Name = "" }, "quorum: Self.Name: empty; want the node's name"},
		{func(c *quorum.Config) { c.Self.Boot = "" }, "quorum: Self.Boot: empty; want the process's boot id"},
		{func(c *quorum.Config) { c.Record.Set = set(1) }, "quorum: Record.Set: {ID:m Version:1 Members:[] Roles:[]}; want an ID and sorted names, each once, or no set"},
		{func(c *quorum.Config) { c.Record.Set = set(1, "b", "a") }, "quorum: Record.Set: {ID:m Version:1 Members:[b a] Roles:[]}; want an ID and sorted names, each once, or no set"},
		{func(c *quorum.Config) { c.ForgetAfter = -1 }, "quorum: ForgetAfter: -1ns; want a positive duration, or 0 for the default"},
		{func(c *quorum.Config) { c.Timeout = -1 }, "quorum: Timeout: -1ns; want more than 100ms, and 1.1 times it less than 2s"},
		{func(c *quorum.Config) { c.Timeout = 100 * time.Millisecond }, "quorum: Timeout: 100ms; want more than 100ms, and 1.1 times it less than 2s"},
		{func(c *quorum.Config) { c.Timeout = 2 * time.Second }, "quorum: Timeout: 2s; want more than 100ms, and 1.1 times it less than 2s"},
	} {
		config := quorum.Config{Self: x}
		c.change(&config)
		got := ""
		if err := config.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
