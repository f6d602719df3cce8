package wire

import (
	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bench/load"
)

// Gubernator asks gubernator 2 by GetRateLimits, with a token bucket in its own default
// behaviour. Domain "denied" has a limit of 1, any other one a limit that is not reached.
func Gubernator(conns []*grpc.ClientConn) *Raw {
	return &Raw{Conns: conns, Method: "/pb.gubernator.V1/GetRateLimits", Append: appendGubernator, Read: readGubernator}
}

// yearMs is a year in milliseconds, gubernator's unit of duration.
const yearMs = 365 * 24 * 3600 * 1000

func appendGubernator(b []byte, domain string, keys []string) []byte {
	limit := uint64(1_000_000_000)
	if domain == "denied" {
		limit = 1
	}
	var one [128]byte
	for _, k := range keys {
		// RateLimitReq: name, unique_key, hits, limit, duration.
		m := appendString(one[:0], 1, domain)
		m = appendString(m, 2, k)
		m = appendNumber(m, 3, 1)
		m = appendNumber(m, 4, limit)
		m = appendNumber(m, 5, yearMs)
		b = appendMessage(b, 1, m)
	}
	return b
}

func readGubernator(b []byte, seen *load.Tally) (n int, err error) {
	var inner error
	err = fields(b, func(f field) {
		if f.num != 1 {
			return
		}
		n++
		// RateLimitResp: status 1 is over the limit; a text in 5 is an error.
		var over, failed bool
		if err := fields(f.bytes, func(f field) {
			over = over || f.num == 1 && f.number == 1
			failed = failed || f.num == 5 && len(f.bytes) > 0
		}); err != nil {
			inner = err
		}
		judge(over, failed, seen)
	})
	if err == nil {
		err = inner
	}
	return n, err
}

func judge(over, failed bool, seen *load.Tally) {
	switch {
	case failed:
		seen.Failed++
	case over:
		seen.Denied++
	default:
		seen.Allowed++
	}
}
