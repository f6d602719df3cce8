package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// curl finds the calls of docs/use/api.md: path and body.
var curl = regexp.MustCompile(`(?s)curl (?:-i )?'?127\.0\.0\.1:7461(/[^\s']+)'? -d '(.*?)'\n`)

func readDoc(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/use/api.md")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := os.ReadFile("../../docs/internals/admin-api.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(doc) + string(admin)
}

// exampleRules returns those of examples/rules.
func exampleRules(t *testing.T) *rules.Set {
	t.Helper()
	paths, err := filepath.Glob("../../examples/rules/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var files []rules.File
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.yaml") {
			continue
		}
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, rules.File{Name: p, Data: data})
	}
	set, err := rules.Parse(files, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// Every call that docs/use/api.md shows is answered well under the example rules, and
// the first one with the headers and the body that stand below it.
func TestDocumentedCalls(t *testing.T) {
	h := exampleAPI(t, func(c *limiter.Config) {
		c.Cluster.(*apitest.Cluster).Forgets = func(context.Context, string) error { return nil }
	})

	doc := readDoc(t)
	calls := curl.FindAllStringSubmatchIndex(doc, -1)
	if len(calls) < 5 {
		t.Fatalf("only %d calls in docs/use/api.md: has their form changed?", len(calls))
	}
	for i, at := range calls {
		path, body := doc[at[2]:at[3]], doc[at[4]:at[5]]
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r = r.WithContext(access.AsOperator(r.Context()))
		w := serve(h, r)
		m := decoded(t, w)
		if w.Code != 200 && !(w.Code == 429 && strings.HasSuffix(path, "?deny=429")) {
			t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
		}
		if m["source"] == "unmatched" {
			t.Errorf("%s %s: no rule applies", path, body)
		}
		if i > 0 {
			continue
		}
		shown := strings.SplitN(doc[at[1]:], "```", 3)[1]
		for line := range strings.Lines(shown) {
			line = strings.TrimSpace(line)
			name, value, ok := strings.Cut(line, ": ")
			switch {
			case strings.HasPrefix(line, "{") && line != strings.TrimSpace(w.Body.String()):
				t.Errorf("docs/use/api.md shows the body %s\nit is %s", line, w.Body)
			case !strings.HasPrefix(line, "{") && ok && w.Header().Get(name) != value:
				t.Errorf("docs/use/api.md shows %s: %s\nit is %s", name, value, w.Header().Get(name))
			}
		}
	}
}

// The type of a problem leads to the row of its code.
func TestEveryCodeIsDocumented(t *testing.T) {
	doc := readDoc(t)
	for c := limiter.Invalid; c <= limiter.Unsupported; c++ {
		page, anchor, _ := strings.Cut(httpanswer.ProblemOf(&limiter.Error{Code: c}).Type, "/docs/use/api.md#")
		if page == "" || !strings.Contains(doc, `<a id="`+anchor+`"></a>`+"`"+c.String()+"`") {
			t.Errorf("%v: #%s is not in docs/use/api.md", c, anchor)
		}
	}
}

// jsonNames returns the names of the fields of a struct in JSON.
func jsonNames(v any) (names []string) {
	for f := range reflect.TypeOf(v).Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// Every field that is read or written stands in docs/use/api.md.
func TestEveryFieldIsDocumented(t *testing.T) {
	doc := readDoc(t)
	fields := append(append(append(append([]string{"checks"}, callOptions...), checkFields...), entryFields...), limitFields...)
	fields = append(fields, slices.Concat(forgetFields, reserveOptions, spendFields, extendFields, settleFields, jsonNames(reserved{})[1:])...)
	for _, v := range []any{limiter.Spent{}, extended{}, limiter.Settlement{}, heldJSON{}, holding{}, decision{}, response{}, header{}, errorJSON{}, decisions{}, httpanswer.Problem{}, nodesJSON{}, nodeJSON{}, membership{}, memberJSON{}, limiter.VoterSet{}, limiter.PartitionCounts{}, forgotten{}, health{}, readiness{}} {
		fields = append(fields, jsonNames(v)...)
	}
	for _, f := range fields {
		if !strings.Contains(doc, "`"+f+"`") && !strings.Contains(doc, `"`+f+`"`) {
			t.Errorf("%s is not in docs/use/api.md", f)
		}
	}
}

// The calls that docs/use/reservations.md shows are answered as it shows, under the rule that it shows.
func TestDocumentedReservation(t *testing.T) {
	data, err := os.ReadFile("../../docs/use/reservations.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.ReplaceAll(string(data), "ID", apitest.ID)
	file := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(doc)
	h := newAPI(t, &apitest.Reserving{Service: apitest.NewLimiter(t, apitest.NewNode(t), file[1], member.Member{Name: "n1"})})
	calls := curl.FindAllStringSubmatch(doc, -1)
	if len(calls) != 2 {
		t.Fatalf("%d calls", len(calls))
	}
	for _, c := range calls {
		w, m := call(t, h, http.MethodPost, c[1], c[2])
		if w.Code != 200 {
			t.Errorf("%s: %d %s", c[0], w.Code, w.Body)
		}
		if m["reservation"] == nil {
			continue
		}
		begin, end, _ := strings.Cut(regexp.MustCompile("(?s)```json\n(.*?)\n```").FindStringSubmatch(doc)[1], "…")
		if got := strings.TrimSpace(w.Body.String()); !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) {
			t.Errorf("docs/use/reservations.md shows %s…%s\nit is %s", begin, end, got)
		}
	}
}
