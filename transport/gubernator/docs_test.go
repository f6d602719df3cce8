package gubernator

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
)

// example is the call of docs/use/gubernator.md, and its answer.
var example = regexp.MustCompile("(?s)curl 127\\.0\\.0\\.1:7461(/\\S+) -d '(.*?)'\n```\n\n```json\n(.*?)\n```")

func TestDocumentedCall(t *testing.T) {
	doc, err := os.ReadFile("../../docs/use/gubernator.md")
	if err != nil {
		t.Fatal(err)
	}
	found := example.FindSubmatch(doc)
	if found == nil {
		t.Fatal("there is no call in docs/use/gubernator.md: has its form changed?")
	}
	d, n := openNode(t)
	n.Now.Store(apitest.Start)
	w, got := call(handler(d), http.MethodPost, string(found[1]), string(found[2]))
	var want bytes.Buffer
	if err := json.Compact(&want, found[3]); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusOK || got != want.String() {
		t.Errorf("%d %s\nthe documentation says %s", w.Code, got, want.String())
	}
}

// TestDocumentedErrors: each text about a wrong field stands in docs/use/gubernator.md, up to what varies.
func TestDocumentedErrors(t *testing.T) {
	doc, err := os.ReadFile("../../docs/use/gubernator.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*gubernatorv1.RateLimitReq){
		func(q *gubernatorv1.RateLimitReq) { q.UniqueKey = "" },
		func(q *gubernatorv1.RateLimitReq) { q.Name = "" },
		func(q *gubernatorv1.RateLimitReq) { q.Name = strings.Repeat("n", maxName+1) },
		func(q *gubernatorv1.RateLimitReq) { q.Algorithm = 2 },
		func(q *gubernatorv1.RateLimitReq) { q.Behavior = 64 },
		func(q *gubernatorv1.RateLimitReq) { q.Behavior = 4 },
	} {
		q := fromProto(hit(change))
		text := q.validate()
		start, _, _ := strings.Cut(text, ":")
		start, end, _ := strings.Cut(start, " 1014 ")
		if text == "" || !bytes.Contains(doc, []byte(start)) || !bytes.Contains(doc, []byte(end)) {
			t.Errorf("%q is not in docs/use/gubernator.md", text)
		}
	}
}

// TestDocumentedNames: sluice's own callers find the counters under the documented names.
func TestDocumentedNames(t *testing.T) {
	n := apitest.NewNode(t)
	var l limiter.Service
	d := open(t, n, n, func(c *Config) { l = c.Limiter })
	long := strings.Repeat("k", 1025)
	for _, c := range []struct {
		key, algorithm string
		descriptor     []rules.Entry
	}{
		{"a", "TOKEN_BUCKET", []rules.Entry{{Key: "unique_key", Value: "a"}}},
		{"a", "LEAKY_BUCKET", []rules.Entry{{Key: "algorithm", Value: "leaky_bucket"}, {Key: "unique_key", Value: "a"}}},
		{long, "TOKEN_BUCKET", []rules.Entry{{Key: "unique_key", Value: long[:512] + "#011cc8dcade24f43d2d7f95605d8481d"}}},
	} {
		q := requestOf(t, "limit=10 duration=60000 hits=4 algorithm="+c.algorithm)
		q.Name, q.UniqueKey = "r", c.key
		get(t, d, q)
		asked := fromProto(q)
		limit := asked.limitAt(d.config.Now())
		b := limiter.NewBatch()
		own := b.Add()
		own.Domain, own.Verb, own.Cost = "gubernator/r", bucket.Read, 0
		own.Descriptor = append(own.Descriptor, c.descriptor...)
		own.Limits = append(own.Limits, limit)
		if err := l.Check(t.Context(), b); err != nil || b.Results[0].Err != nil || b.Results[0].Remaining != 6 {
			t.Errorf("%.20s %s: %+v, %v; want 6 left", c.key, c.algorithm, b.Results[0], err)
		}
		b.Release()
	}
}
