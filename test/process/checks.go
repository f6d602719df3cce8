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

// InlineCheck asks for one unit of key, 10 an hour.
func InlineCheck(key string) *sluicev1.Check {
	return &sluicev1.Check{
		Domain: "e2e", Descriptor_: []*sluicev1.Entry{{Key: "key", Value: key}},
		Limits: []*sluicev1.Limit{{
			Algorithm: sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET, Count: 10, PeriodNs: int64(time.Hour),
		}},
	}
}
