package node

import "testing"

func TestExpect(t *testing.T) {
	named := []string{"n0", "n1", "n2"}
	for _, c := range []struct {
		change func(c *Config)
		want   int
	}{
		{func(*Config) {}, 1}, // Bind is 127.0.0.1
		{func(c *Config) { c.BootstrapExpect = 3 }, 3},
		{func(c *Config) { c.Join = []string{"a"} }, 0},
		{func(c *Config) { c.Join, c.BootstrapExpect = []string{"a"}, 3 }, 3},
		{func(c *Config) { c.Name, c.BootstrapExpect, c.BootstrapNames = "n9", 3, named }, 0},
		{func(c *Config) { c.Name, c.BootstrapExpect, c.BootstrapNames = "n2", 3, named }, 3},
	} {
		s := Defaults()
		c.change(&s)
		if err := s.Validate(); err != nil || s.expect() != c.want {
			t.Errorf("%+v: expects %d, %v; want %d", s, s.expect(), err, c.want)
		}
	}
}
