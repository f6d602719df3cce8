package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// RulesOf writes rule files, one of each text, and returns their folder.
func RulesOf(t *testing.T, texts ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("rules-%d.yaml", i)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Entries makes a descriptor of key, value, key, value …
func Entries(pairs ...string) (list []*sluicev1.Entry) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, &sluicev1.Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return list
}

// BytesCodec carries *[]byte as they are, under the name that servers know.
type BytesCodec struct{}

func (BytesCodec) Name() string { return "proto" }

func (BytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (BytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// AuditPeriod returns a period of about an hour whose epoch-aligned window goes
// on for at least five minutes from now, and a zone whose day does.
func AuditPeriod(now time.Time) (period time.Duration, zone string) {
	left := func(p time.Duration) time.Duration { return p - time.Duration(now.UnixNano()%int64(p)) }
	for _, p := range []time.Duration{time.Hour, 67 * time.Minute, 71 * time.Minute} { // the longest that is left of any
		if period == 0 || left(p) > left(period) {
			period = p
		}
	}
	zone = "UTC"
	if now.UTC().Add(5*time.Minute).Day() != now.UTC().Day() {
		zone = "Asia/Kathmandu"
	}
	return period, zone
}

// InlineCheck asks for one unit of key, 10 an hour.
func InlineCheck(key string) *sluicev1.Check {
	return &sluicev1.Check{
		Domain: "e2e", Descriptor_: []*sluicev1.Entry{{Key: "key", Value: key}},
		Limits: []*sluicev1.Limit{{
			Algorithm: sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET, Count: 10, PeriodNs: int64(time.Hour),
		}},
	}
}
