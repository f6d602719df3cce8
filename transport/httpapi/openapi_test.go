package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// object is one of docs/openapi.yaml.
type object = map[string]any

const openAPIURL = "openapi.json"

// openAPI returns docs/openapi.yaml. In it the objects of responses may have no properties that are not described: clients accept
// others, and the server has none.
var openAPI = sync.OnceValues(func() (object, error) {
	data, err := os.ReadFile("../../docs/openapi.yaml")
	if err != nil {
		return nil, err
	}
	var read any
	if err := yaml.Unmarshal(data, &read); err != nil {
		return nil, err
	}
	text, err := json.Marshal(read) // so that numbers and maps are those of JSON
	if err != nil {
		return nil, err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	doc := v.(object)
	for _, s := range at(doc, "components", "schemas") {
		closeBelow(s)
	}
	for _, r := range at(doc, "components", "responses") {
		closeContent(r)
	}
	for _, item := range at(doc, "paths") {
		for _, op := range item.(object) {
			for _, r := range at(op.(object), "responses") {
				closeContent(r)
			}
		}
	}
	return doc, nil
})

// at returns the object at the end of the path, nil if there is none.
func at(o object, path ...string) object {
	for _, p := range path {
		o, _ = o[p].(object)
	}
	return o
}

func closeContent(response any) {
	for _, c := range at(response.(object), "content") {
		if s := at(c.(object), "schema"); s != nil {
			s["unevaluatedProperties"] = false
			closeBelow(s)
		}
	}
}

// closeBelow closes the objects within a schema, and leaves itself and what it combines open.
func closeBelow(schema any) {
	s := schema.(object)
	for _, p := range at(s, "properties") {
		p.(object)["unevaluatedProperties"] = false
		closeBelow(p)
	}
	if items := at(s, "items"); items != nil {
		items["unevaluatedProperties"] = false
		closeBelow(items)
	}
}

// schema is a compiled part of the file.
var schema = func() func(pointer string) (*jsonschema.Schema, error) {
	var mu sync.Mutex
	compiled := make(map[string]*jsonschema.Schema)
	return func(pointer string) (*jsonschema.Schema, error) {
		doc, err := openAPI()
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if s := compiled[pointer]; s != nil {
			return s, nil
		}
		c := jsonschema.NewCompiler()
		c.AssertFormat()
		if err := c.AddResource(openAPIURL, doc); err != nil {
			return nil, err
		}
		s, err := c.Compile(openAPIURL + pointer)
		compiled[pointer] = s
		return s, err
	}
}()

// resolve follows a $ref.
func resolve(doc, o object, pointer string) (object, string) {
	if ref, ok := o["$ref"].(string); ok {
		return at(doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...), ref
	}
	return o, pointer
}

func escape(name string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(name) }

// operation returns the operation that describes a request, and its place in the file; nil if there is none.
func operation(doc object, method, path string) (object, string) {
	path, _, _ = strings.Cut(path, "?")
	want := strings.Split(path, "/")
	for name, item := range at(doc, "paths") {
		steps := strings.Split(name, "/")
		if slices.EqualFunc(steps, want, func(step, w string) bool { return step == w || strings.HasPrefix(step, "{") }) {
			method := strings.ToLower(method)
			return at(item.(object), method), "#/paths/" + escape(name) + "/" + method
		}
	}
	return nil, ""
}

// describes fails the test if the response to a request is not as docs/openapi.yaml describes it.
func describes(t testing.TB, method, path string, w *httptest.ResponseRecorder) {
	t.Helper()
	doc, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	op, pointer := operation(doc, method, path)
	if op == nil {
		return
	}
	status := strconv.Itoa(w.Code)
	if at(op, "responses", status) == nil {
		status = "default"
	}
	response, pointer := resolve(doc, at(op, "responses", status), pointer+"/responses/"+status)
	for name := range w.Header() {
		known := func(h string) bool { return strings.EqualFold(h, name) }
		if name != "Content-Type" && !slices.ContainsFunc(slices.Collect(maps.Keys(at(response, "headers"))), known) {
			t.Errorf("%s %s, status %d: the header %s is not in docs/openapi.yaml", method, path, w.Code, name)
		}
	}
	kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";")
	content := at(response, "content", kind)
	switch {
	case content == nil:
		t.Errorf("%s %s, status %d: no body of type %q is in docs/openapi.yaml", method, path, w.Code, kind)
	case content["schema"] != nil:
		validate(t, pointer+"/content/"+escape(kind)+"/schema", w.Body.Bytes())
	}
}

// validate holds JSON to the schema at a place of the file.
func validate(t testing.TB, pointer string, text []byte) {
	t.Helper()
	s, err := schema(pointer)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err == nil {
		err = s.Validate(v)
	}
	if err != nil {
		t.Errorf("%s\nis not what docs/openapi.yaml has at %s: %v", text, pointer, err)
	}
}

// TestOpenAPIPaths: the file has every path and method that is not for operators, and no others. Forward auth is another package's.
func TestOpenAPIPaths(t *testing.T) {
	doc, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	var described, served []string
	for path, item := range at(doc, "paths") {
		for method := range item.(object) {
			if path != "/v1/authorize/{domain}" {
				described = append(described, strings.ToUpper(method)+" "+path)
			}
		}
	}
	for _, e := range (&api{Config{Metrics: http.NotFoundHandler()}}).endpoints() {
		if !strings.HasPrefix(e.path, "/admin/") {
			served = append(served, e.method+" "+e.path)
		}
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("docs/openapi.yaml has %q\nthe server %q", described, served)
	}
}

// TestOpenAPIFields: the file has the fields that the server reads and writes, and no others.
func TestOpenAPIFields(t *testing.T) {
	doc, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	properties := func(o object) []string { return slices.Sorted(maps.Keys(at(o, "properties"))) }
	schemas := at(doc, "components", "schemas")
	counter, spend, check := at(schemas, "Counter"), at(schemas, "Spend"), at(schemas, "Check")
	list := at(doc, "paths", "/v1/check", "post", "requestBody", "content", "application/json", "schema")["oneOf"].([]any)[1].(object)
	entry := at(counter, "properties", "descriptor", "items")["oneOf"].([]any)[1].(object)
	decided, nodes := at(schemas, "Decision", "properties"), at(schemas, "Nodes")
	body := func(response object) object { return at(response, "content", "application/json", "schema") }
	sent := func(path string) object { return body(at(doc, "paths", path, "post", "requestBody")) }
	got := func(path string) object { return body(at(doc, "paths", path, "post", "responses", "200")) }
	reserving := sent("/v1/reserve")["oneOf"].([]any)
	for what, c := range map[string]struct{ got, want []string }{
		"a check": {slices.Concat(properties(counter), properties(spend), properties(check)), checkFields},
		"a list":  {properties(list), append([]string{"checks"}, callOptions...)},
		"entries": {properties(entry), entryFields},
		"limits":  {properties(at(schemas, "Limit")), limitFields},

		"a decision":    {properties(at(schemas, "Decision")), jsonNames(decision{})},
		"a response":    {properties(at(decided, "response")), jsonNames(response{})},
		"a header":      {properties(at(decided, "response", "properties", "headers", "items")), jsonNames(header{})},
		"an error":      {properties(at(decided, "error")), jsonNames(errorJSON{})},
		"decisions":     {properties(at(schemas, "Decisions")), jsonNames(decisions{})},
		"a problem":     {properties(at(schemas, "Problem")), jsonNames(httpanswer.Problem{})},
		"nodes":         {properties(nodes), jsonNames(nodesJSON{})},
		"a node":        {properties(at(nodes, "properties", "nodes", "items")), jsonNames(nodeJSON{})},
		"a pool":        {properties(body(at(doc, "paths", "/v1/pools/{domain}/{pool}/load", "put", "responses", "200"))), jsonNames(poolLoad{})},
		"the health":    {properties(body(at(doc, "paths", "/healthz", "get", "responses", "200"))), jsonNames(health{})},
		"the readiness": {properties(body(at(doc, "components", "responses", "Readiness"))), jsonNames(readiness{})},

		"a reserve":           {properties(reserving[0].(object)), slices.Concat(budgetFields, reserveOptions)},
		"a reserve of a list": {properties(reserving[1].(object)), append([]string{"checks"}, reserveOptions...)},
		"spend":               {properties(sent("/v1/spend")), spendFields},
		"extend":              {properties(sent("/v1/extend")), extendFields},
		"settle":              {properties(sent("/v1/settle")), settleFields},
		"held":                {properties(sent("/v1/held")), heldFields},
		"reserved":            {slices.Concat(properties(at(schemas, "Decisions")), properties(body(at(doc, "components", "responses", "Reserved")))), append(jsonNames(decisions{}), jsonNames(reserved{})[1:]...)},
		"spent":               {properties(got("/v1/spend")), jsonNames(limiter.Spent{})},
		"extended":            {properties(got("/v1/extend")), jsonNames(extended{})},
		"settled":             {properties(got("/v1/settle")), jsonNames(limiter.Settlement{})},
		"what is held":        {properties(got("/v1/held")), jsonNames(heldJSON{})},
		"a holding":           {properties(at(got("/v1/held"), "properties", "holdings", "items")), jsonNames(holding{})},
	} {
		slices.Sort(c.got)
		if want := slices.Sorted(slices.Values(c.want)); !slices.Equal(c.got, want) {
			t.Errorf("%s: docs/openapi.yaml has %q, the server %q", what, c.got, want)
		}
	}
}

// TestOpenAPIExamples sends the requests of the file. The responses are as it describes them, and those that it shows are the
// responses to the requests of the same name.
func TestOpenAPIExamples(t *testing.T) {
	doc, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	sent, shown := 0, 0
	for path, item := range at(doc, "paths") {
		for method, op := range item.(object) {
			op := op.(object)
			if path == "/v1/authorize/{domain}" {
				continue
			}
			target, denies := path, false
			for _, p := range toList(op["parameters"]) {
				p, _ := resolve(doc, p.(object), "")
				denies = denies || p["name"] == "deny"
				if p["in"] == "path" {
					target = strings.Replace(target, "{"+p["name"].(string)+"}", at(p, "schema")["examples"].([]any)[0].(string), 1)
				}
			}
			body, bodyPointer := resolve(doc, at(op, "requestBody"), "#/paths/"+escape(path)+"/"+method+"/requestBody")
			requests := at(body, "content", "application/json", "examples")
			if body == nil {
				requests = object{"get": object{}}
			}
			if len(requests) == 0 {
				t.Errorf("%s %s has no example", method, path)
			}
			for name, example := range requests {
				var text []byte
				if body != nil {
					text = marshal(t, example.(object)["value"])
					validate(t, bodyPointer+"/content/application~1json/schema", text)
				}
				for _, query := range []string{"", "?deny=429"}[:map[bool]int{false: 1, true: 2}[denies]] {
					w, _ := call(t, exampleAPI(t), strings.ToUpper(method), target+query, string(text)) // holds it to the file
					if sent++; w.Code >= 400 && (w.Code != 429 || query == "") {
						t.Errorf("%s %s, %s: %d %s", method, target, name, w.Code, w.Body)
					}
					for status, r := range at(op, "responses") {
						r, _ := resolve(doc, r.(object), "")
						value := at(r, "content", "application/json", "examples", name)["value"]
						if value == nil || status != fmt.Sprint(w.Code) {
							continue
						}
						shown++
						var want, got any
						if json.Unmarshal(marshal(t, value), &want) != nil || json.Unmarshal(w.Body.Bytes(), &got) != nil || !reflect.DeepEqual(want, got) {
							t.Errorf("%s %s, %s: docs/openapi.yaml shows %v, it is %s", method, target, name, want, w.Body)
						}
					}
				}
			}
		}
	}
	if sent < 20 || shown < 5 {
		t.Errorf("%d requests were sent, and %d responses are shown", sent, shown)
	}
}

func toList(v any) []any {
	list, _ := v.([]any)
	return list
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// exampleAPI returns a new API of a node that has the example rules.
func exampleAPI(t *testing.T, change ...func(*limiter.Config)) http.Handler {
	t.Helper()
	self := member.Member{Name: "n1", State: member.Serving, GRPC: "127.0.0.1:7460", HTTP: "127.0.0.1:7461"}
	l := apitest.NewLimiter(t, apitest.NewNode(t), testRules, self, change...)
	l.SetRules(exampleRules(t))
	return newAPI(t, &apitest.Reserving{Service: l}, func(c *Config) {
		c.CheckTimeout = 1500 * time.Millisecond
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		})
	})
}
