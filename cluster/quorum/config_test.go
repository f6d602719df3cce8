package quorum_test

import (
	"testing"
	"time"

	"github.com/sluice-project/sluice/cluster/quorum"
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
		{func(c *quorum.Config) { c.Record.Set = set(1) }, "quorum: Record.Set: {ID:m Version:1 Members:[]}; want an ID and sorted names, each once, or no set"},
		{func(c *quorum.Config) { c.Record.Set = set(1, "b", "a") }, "quorum: Record.Set: {ID:m Version:1 Members:[b a]}; want an ID and sorted names, each once, or no set"},
		{func(c *quorum.Config) { c.ForgetAfter = -1 }, "quorum: ForgetAfter: -1ns; want a positive duration, or 0 for the default"},
		{func(c *quorum.Config) { c.Heartbeat = time.Second }, "quorum: Timeout: 600ms; want more than Heartbeat, which is 1s"},
		{func(c *quorum.Config) { c.Timeout = 2 * time.Second }, "quorum: Grace: 2s; want more than 1.1 × Timeout, which is 2.2s"},
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
