package change

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
)

// changeCounts are the ways to count that changes are tested with.
var changeCounts = []struct {
	name, rule string
	limit      bucket.Limit
}{
	{"first", "algorithm: fixed_window, align: first_hit", bucket.Limit{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit}},
	{"bucket", "algorithm: token_bucket", bucket.Limit{Algorithm: bucket.TokenBucket}},
	{"sliding", "algorithm: sliding_counter", bucket.Limit{Algorithm: bucket.SlidingCounter}},
}

// Keys of a few units an hour, which are soon at their limit, and of many.
const (
	smallKeys, smallLimit = 1000, 10
	largeKeys, largeLimit = 100, 100_000
)

// changeSpecs are the keys to be audited; rules says that changeRules hold their limits.
func changeSpecs(rules bool) (sizes [2][]audit.Spec) {
	for size, keys := range [2]struct {
		name  string
		keys  int
		limit int64
	}{{"small", smallKeys, smallLimit}, {"large", largeKeys, largeLimit}} {
		for _, c := range changeCounts {
			limit := c.limit
			limit.Count, limit.Period = keys.limit, time.Hour
			spec := audit.Spec{Keys: keys.keys, Limit: limit}
			if rules {
				spec.Descriptor = keys.name + "_" + c.name
			}
			sizes[size] = append(sizes[size], spec)
		}
	}
	return sizes
}

// changeRules is the rule file with the limits of changeSpecs.
func changeRules(replication string) string {
	var b strings.Builder
	b.WriteString("domain: change\ndescriptors:\n")
	for _, keys := range []struct {
		name  string
		limit int64
	}{{"small", smallLimit}, {"large", largeLimit}} {
		for _, c := range changeCounts {
			fmt.Fprintf(&b, "  - key: %s_%s\n    replication: %s\n    limits:\n      - {count: %d, period: 1h, %s}\n",
				keys.name, c.name, replication, keys.limit, c.rule)
		}
	}
	return b.String()
}
