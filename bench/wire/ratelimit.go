package wire

import (
	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bench/load"
)

// RateLimit asks envoyproxy/ratelimit by ShouldRateLimit, a descriptor for each check.
func RateLimit(conns []*grpc.ClientConn) *Raw {
	return &Raw{
		Conns: conns, Method: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
		Append: appendRateLimit, Read: readRateLimit,
	}
}

func appendRateLimit(b []byte, domain string, keys []string) []byte {
	b = appendString(b, 1, domain)
	var entry, descriptor [128]byte
	for _, k := range keys {
		e := appendString(entry[:0], 1, "user")
		e = appendString(e, 2, k)
		b = appendMessage(b, 2, appendMessage(descriptor[:0], 1, e))
	}
	return b
}

func readRateLimit(b []byte, seen *load.Tally) (n int, err error) {
	var inner error
	err = fields(b, func(f field) {
		if f.num != 2 {
			return
		}
		n++
		// DescriptorStatus: code 1 is OK, 2 is over the limit.
		var code uint64
		if err := fields(f.bytes, func(f field) {
			if f.num == 1 {
				code = f.number
			}
		}); err != nil {
			inner = err
		}
		judge(code == 2, code == 0, seen)
	})
	if err == nil {
		err = inner
	}
	return n, err
}
