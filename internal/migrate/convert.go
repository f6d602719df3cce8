package migrate

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// same sets flag to the value.
func same(flag string) convert {
	return func(c *conversion, v string) error { c.set(flag, v); return nil }
}

// whole sets flag to times the value, a whole number above 0.
func whole(flag string, times int) convert {
	return func(c *conversion, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 1<<40 {
			return fmt.Errorf("%q is no whole number above 0", v)
		}
		c.set(flag, strconv.Itoa(n*times))
		return nil
	}
}

// port sets flag to a port.
func port(flag string) convert {
	return func(c *conversion, v string) error {
		if n, err := strconv.ParseUint(v, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q is no port; want 1 to 65535", v)
		}
		c.set(flag, v)
		return nil
	}
}

// host sets flag to an IP address.
func host(flag string) convert {
	return func(c *conversion, v string) error {
		switch {
		case v == "localhost":
			v = "127.0.0.1"
		case net.ParseIP(v) == nil:
			c.todo("--" + flag + " wants an IP address: give the one of " + v)
			return nil
		}
		c.set(flag, v)
		return nil
	}
}

// address sets flags to the two parts of host:port. Without portFlag the port is dropped.
func address(hostFlag, portFlag string) convert {
	return func(c *conversion, v string) error {
		h, p, err := net.SplitHostPort(v)
		if err != nil {
			return fmt.Errorf("%q is not host:port", v)
		}
		if h == "" {
			h = "0.0.0.0"
		}
		if portFlag == "" {
			return host(hostFlag)(c, h)
		}
		return errors.Join(host(hostFlag)(c, h), port(portFlag)(c, p))
	}
}

// boolean reads true and false as Go does.
func boolean(v string) (bool, error) {
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", v)
	}
	return b, nil
}

// when sets flag to value if the setting is true.
func when(flag, value string) convert {
	return func(c *conversion, v string) error {
		yes, err := boolean(v)
		if yes {
			c.set(flag, value)
		}
		return err
	}
}

// choice sets flag to what pairs have for the value: pairs of a value and the flag's, in lower case.
func choice(flag string, pairs ...string) convert {
	return func(c *conversion, v string) error {
		var known []string
		for i := 0; i < len(pairs); i += 2 {
			if strings.EqualFold(pairs[i], v) {
				c.set(flag, pairs[i+1])
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

var logFormat = choice("log-format", "text", "text", "json", "json")

// share sets flag to a number from 0 to 1.
func share(flag string) convert {
	return func(c *conversion, v string) error {
		if f, err := strconv.ParseFloat(v, 64); err != nil || !(f >= 0 && f <= 1) {
			return fmt.Errorf("%q is no number from 0 to 1", v)
		}
		c.set(flag, v)
		return nil
	}
}

// hosts are those of a comma separated list, without their ports and without the dots that end DNS names.
func hosts(list string) []string {
	var found []string
	for one := range strings.SplitSeq(list, ",") {
		if h, _, err := net.SplitHostPort(strings.TrimSpace(one)); err == nil {
			one = h
		}
		if one = strings.TrimSuffix(strings.TrimSpace(one), "."); one != "" && !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found
}

// traces sets --otlp-endpoint; protocol is how the other product sends them.
func (c *conversion) traces(endpoint, protocol string) {
	c.set("otlp-endpoint", endpoint)
	if protocol != "" && protocol != "grpc" {
		c.todo("--otlp-endpoint is spoken to over gRPC, which collectors serve at another port than HTTP, usually 4317")
	}
}
