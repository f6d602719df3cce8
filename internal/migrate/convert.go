package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// convert sets flags, or adds remarks. An error says what is wrong with the value.
type convert func(c *conversion, value string) error

// same sets flags to the value.
func same(flags ...string) convert {
	return func(c *conversion, v string) error {
		for _, flag := range flags {
			c.set(flag, v)
		}
		return nil
	}
}

// host sets flag to an IP address.
func host(flag string) convert {
	return func(c *conversion, v string) error {
		v = cmp.Or(map[string]string{"": "0.0.0.0", "localhost": "127.0.0.1"}[v], v)
		if net.ParseIP(v) != nil {
			c.set(flag, v)
		} else {
			c.note(Todo, "--"+flag+" wants an IP address: give that of "+v)
		}
		return nil
	}
}

// address sets flags to the parts of host:port.
func address(hostFlag string, portFlags ...string) convert {
	return func(c *conversion, v string) error {
		h, p, err := net.SplitHostPort(v)
		if err != nil {
			return fmt.Errorf("%q is not host:port", v)
		}
		return errors.Join(host(hostFlag)(c, h), same(portFlags...)(c, p))
	}
}

// joins adds nodes, without their ports and the dots that end DNS names.
func joins(c *conversion, v string) error {
	for one := range strings.SplitSeq(v, ",") {
		one = strings.TrimSpace(one)
		if h, _, err := net.SplitHostPort(one); err == nil {
			one = h
		}
		c.join = append(c.join, strings.TrimSuffix(one, "."))
	}
	return nil
}

// yes is for a boolean: to is done if it is true.
func yes(to convert) convert {
	return func(c *conversion, v string) error {
		switch yes, err := strconv.ParseBool(v); {
		case err != nil:
			return fmt.Errorf("%q is neither true nor false", v)
		case yes:
			return to(c, v)
		}
		return nil
	}
}

// beside does to if the setting name is given and not false.
func beside(name string, to convert) convert {
	return func(c *conversion, v string) error {
		if yes, err := strconv.ParseBool(c.values[name]); c.values[name] == "" || err == nil && !yes {
			return nil
		}
		return to(c, v)
	}
}

// choice sets flag to what follows the value in pairs, unless that is "".
func choice(flag string, pairs ...string) convert {
	return func(c *conversion, v string) error {
		var known []string
		for i := 0; i < len(pairs); i += 2 {
			if strings.EqualFold(pairs[i], v) {
				if pairs[i+1] != "" {
					c.set(flag, pairs[i+1])
				}
				return nil
			}
			known = append(known, pairs[i])
		}
		return fmt.Errorf("%q is none of %s", v, strings.Join(known, ", "))
	}
}

// logLevel converts the levels of logrus.
var logLevel = choice("log-level", "trace", "debug", "debug", "debug", "info", "info", "warn", "warn", "warning", "warn",
	"error", "error", "fatal", "error", "panic", "error")

// all does one after the other.
func all(list ...convert) convert {
	return func(c *conversion, v string) (err error) {
		for _, to := range list {
			err = errors.Join(err, to(c, v))
		}
		return err
	}
}

func fixed(flag, value string) convert {
	return func(c *conversion, _ string) error { c.set(flag, value); return nil }
}

func remark(text string) convert {
	return func(c *conversion, _ string) error { c.note(Todo, text); return nil }
}

// twice sets flag to twice a whole number.
func twice(flag string) convert {
	return func(c *conversion, v string) error {
		n, err := strconv.ParseInt(v, 10, 48)
		if err != nil {
			return fmt.Errorf("%q is no whole number", v)
		}
		c.set(flag, strconv.FormatInt(2*n, 10))
		return nil
	}
}
