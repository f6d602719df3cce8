package rules

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// ParseDuration reads a duration as rule files spell it: as time.ParseDuration
// does, and with d for 24 hours and w for 7 days, for example "90s", "1h30m",
// "7d". Negative durations and those beyond 292 years are errors.
func ParseDuration(s string) (time.Duration, error) {
	bad := func(why string) (time.Duration, error) {
		return 0, fmt.Errorf("%.40q is not a duration such as 90s, 1h30m or 7d: %s", s, why)
	}
	if s == "0" {
		return 0, nil
	}
	if s == "" {
		return bad("it is empty")
	}
	var total time.Duration
	for rest := s; rest != ""; {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		if digits == 0 {
			return bad("a number is missing")
		}
		letters := strings.IndexAny(rest[digits:], "0123456789.")
		if letters < 0 {
			letters = len(rest) - digits
		}
		part, err := parsePart(rest[:digits], rest[digits:digits+letters])
		if err != nil {
			return bad(err.Error())
		}
		if total > math.MaxInt64-part {
			return bad("it is too long")
		}
		total += part
		rest = rest[digits+letters:]
	}
	return total, nil
}

// parsePart reads one number with its unit.
func parsePart(number, unit string) (time.Duration, error) {
	times := time.Duration(1)
	switch unit {
	case "":
		return 0, errors.New("a unit is missing")
	case "d":
		unit, times = "h", 24
	case "w":
		unit, times = "h", 7*24
	}
	part, err := time.ParseDuration(number + unit)
	if err != nil {
		return 0, errors.New("its units are ns, us, ms, s, m, h, d and w")
	}
	if part > math.MaxInt64/times {
		return 0, errors.New("it is too long")
	}
	return part * times, nil
}
