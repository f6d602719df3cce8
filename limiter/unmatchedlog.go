package limiter

import (
	"hash/maphash"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
	"github.com/sluicecluster/sluice/rules"
)

// unmatchedEvery is the minimum time between two log lines about unmatched descriptors with the same keys.
const unmatchedEvery = time.Minute

// unmatchedLog logs which checks no rule matches, once per minute for each domain and list of keys.
type unmatchedLog struct {
	to    *slog.Logger // nil logs nothing
	quiet *loglimit.Limiter
	seed  maphash.Seed
	// next are the times of the Clock before which kinds of that hash wait, so that most checks take no lock.
	next *[64]atomic.Int64
}

func newUnmatchedLog(to *slog.Logger) unmatchedLog {
	return unmatchedLog{to, loglimit.New(unmatchedEvery), maphash.MakeSeed(), new([64]atomic.Int64)}
}

// log logs that no rule matches c, if no line did in the last minute. domain is that of the rules, or UnknownDomains: clients
// can name any number of these.
func (u *unmatchedLog) log(now time.Duration, domain string, c *Check, means rules.Unmatched) {
	if u.to == nil {
		return
	}
	sum := maphash.String(u.seed, domain)
	for i := range c.Descriptor {
		sum = sum*31 + maphash.String(u.seed, c.Descriptor[i].Key)
	}
	next := &u.next[sum%uint64(len(u.next))]
	if at := next.Load(); int64(now) < at || !next.CompareAndSwap(at, int64(now+time.Second)) {
		return
	}
	var keys strings.Builder
	for i := 0; i < len(c.Descriptor) && keys.Len() < 200; i++ {
		keys.WriteString(" " + c.Descriptor[i].Key)
	}
	kind := domain
	if domain != UnknownDomains {
		kind += keys.String()
	}
	if u.quiet.Allow(time.Unix(0, int64(now)), kind) {
		u.to.Warn("no rule matches a check; sluice rules explain says why", "domain", c.Domain, "keys", keys.String()[1:], "unmatched", means.String())
	}
}
