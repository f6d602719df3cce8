package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/sluicecluster/sluice/client/httplimit"
	"github.com/sluicecluster/sluice/client/limit"
)

// three admits three of each descriptor, in the place of a *sluice.Client.
type three map[string]int64

func (t three) Check(_ context.Context, c limit.Check) (limit.Decision, error) {
	counter := fmt.Sprint(c.Descriptor)
	if c.Verb == limit.VerbRefund {
		t[counter] -= c.Amount
		return limit.Decision{Allowed: true}, nil
	}
	d := limit.Decision{Counted: true, LimitName: "per-user", Limit: 3, Count: 3, Period: time.Minute}
	if t[counter]+c.Amount > 3 {
		d.Verdict, d.RetryAfter = limit.VerdictDenied, 20*time.Second
		return d, nil
	}
	t[counter] += c.Amount
	d.Allowed, d.Verdict, d.Remaining = true, limit.VerdictAllowed, 3-t[counter]
	return d, nil
}

func (t three) CheckAll(ctx context.Context, checks ...limit.Check) (limit.Batch, error) {
	all, err := t.CheckEach(ctx, checks...)
	return limit.NewBatch(all), err
}

func (t three) CheckEach(ctx context.Context, checks ...limit.Check) (all []limit.Decision, err error) {
	for _, c := range checks {
		d, _ := t.Check(ctx, c)
		all = append(all, d)
	}
	return all, nil
}

// client returns a *sluice.Client in a program.
func client() limit.Limiter { return three{} }

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })

func ExampleMiddleware() {
	limits := httplimit.Middleware(client(), httplimit.Config{
		Domain: "shop",
		Keys:   []httplimit.Key{httplimit.First(httplimit.APIKey("X-Api-Key"), httplimit.IP())},
	})
	h := limits(hello)
	for range 4 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		header := map[string][]string(w.Header()) // by the name as it is sent; Get wants it as Go spells it
		fmt.Println(w.Code, header["RateLimit"][0])
	}
	// Output:
	// 200 "per-user";r=2;t=0
	// 200 "per-user";r=1;t=0
	// 200 "per-user";r=0;t=0
	// 429 "per-user";r=0;t=20
}

// Several keys are one decision. Denied clients are not told so.
func ExampleConfig() {
	h := httplimit.Middleware(client(), httplimit.Config{
		Domain: "blog",
		Keys: []httplimit.Key{
			httplimit.IP(netip.MustParsePrefix("10.0.0.0/8")),                                    // per address
			httplimit.Join(httplimit.Header("user", "X-User"), httplimit.Value("do", "comment")), // per user and for comments
		},
		Skip:      func(r *http.Request) bool { return r.URL.Path == "/health" },
		Amount:    func(r *http.Request) int64 { return 2 },
		Shadowban: true, ShadowBody: "thank you",
	})(hello)
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/comments", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 hello
	// 200 thank you
}

// Failed logins count, others do not: three guesses, however many are made at once.
func ExampleConfig_chargeIf() {
	login := httplimit.Middleware(client(), httplimit.Config{
		Domain: "auth",
		Keys:   []httplimit.Key{httplimit.Header("user", "X-User")},
		ChargeIf: func(status int) int64 {
			if status == http.StatusUnauthorized {
				return 1
			}
			return 0
		},
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Password") != "right" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, password := range []string{"right", "1234", "right", "love", "god", "right"} {
		r := httptest.NewRequest("POST", "/login", nil)
		r.Header.Set("X-User", "anna")
		r.Header.Set("X-Password", password)
		w := httptest.NewRecorder()
		login.ServeHTTP(w, r)
		fmt.Print(w.Code, " ")
	}
	// Output: 200 401 200 401 401 429
}

func ExampleConfig_Validate() {
	c := httplimit.Config{Domain: "shop"} // from a configuration file
	fmt.Println(c.Validate())
	// Output: httplimit: Keys is empty; want at least one
}

func ExampleNewTransport() {
	server := httptest.NewServer(hello)
	defer server.Close()
	api := http.Client{Transport: httplimit.NewTransport(client(), nil, httplimit.Config{
		Domain: "outbound", Keys: []httplimit.Key{httplimit.Host()}, MaxWait: time.Second,
	})}
	for range 4 {
		res, err := api.Get(server.URL)
		if err != nil {
			fmt.Println(errors.Is(err, limit.ErrDenied))
			continue
		}
		res.Body.Close()
		fmt.Println(res.StatusCode)
	}
	// Output:
	// 200
	// 200
	// 200
	// true
}

// sent is the request that the keys below are made of.
var sent = func() *http.Request {
	r := httptest.NewRequest("GET", "http://api.example.com/orders//7", nil)
	r.Header = http.Header{"X-User": {"anna"}, "X-Api-Key": {"secret"}, "X-Forwarded-For": {"192.0.2.7"}}
	r.RemoteAddr, r.Pattern = "10.0.0.1:1234", "GET /orders/{id}"
	return r
}()

func ExampleKey() {
	var half httplimit.Key = func(r *http.Request) ([]limit.Entry, bool) {
		return []limit.Entry{{Key: "half", Value: r.Host[:1]}}, r.Host != ""
	}
	fmt.Println(half(sent))
	// Output: [{half a}] true
}

func ExampleKey_As() {
	fmt.Println(httplimit.Method().As("verb")(sent))
	// Output: [{verb GET}] true
}

func ExampleJoin() {
	fmt.Println(httplimit.Join(httplimit.Header("user", "X-User"), httplimit.Method())(sent))
	// Output: [{user anna} {method GET}] true
}

func ExampleFirst() {
	fmt.Println(httplimit.First(httplimit.Header("tenant", "X-Tenant"), httplimit.Header("user", "X-User"))(sent))
	// Output: [{user anna}] true
}

func ExampleValue() {
	fmt.Println(httplimit.Value("service", "orders")(sent))
	// Output: [{service orders}] true
}

func ExampleFrom() {
	fmt.Println(httplimit.From("scheme", func(r *http.Request) string { return r.URL.Scheme })(sent))
	// Output: [{scheme http}] true
}

func ExampleUser() {
	fmt.Println(httplimit.User(func(r *http.Request) string {
		name, _, _ := r.BasicAuth() // or a value of r.Context()
		return name
	})(sent))
	// Output: [] false
}

func ExampleHeader() {
	fmt.Println(httplimit.Header("user", "X-User")(sent))
	// Output: [{user anna}] true
}

func ExampleAPIKey() {
	fmt.Println(httplimit.APIKey("X-Api-Key")(sent))
	// Output: [{api_key 2bb80d537b1da3e38bd30361aa855686}] true
}

func ExampleMethod() {
	fmt.Println(httplimit.Method()(sent))
	// Output: [{method GET}] true
}

func ExamplePath() {
	fmt.Println(httplimit.Path()(sent))
	// Output: [{path /orders/7}] true
}

func ExampleRoute() {
	fmt.Println(httplimit.Route()(sent))
	// Output: [{route /orders/{id}}] true
}

func ExampleRouteOf() {
	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", hello)
	limits := httplimit.Middleware(client(), httplimit.Config{
		Domain: "shop", Keys: []httplimit.Key{httplimit.Join(httplimit.Header("user", "X-User"), httplimit.RouteOf(mux))},
	})
	w := httptest.NewRecorder()
	limits(mux).ServeHTTP(w, httptest.NewRequest("GET", "/orders/7", nil))
	fmt.Println(w.Body)
	fmt.Println(httplimit.RouteOf(mux)(httptest.NewRequest("GET", "/orders/7", nil)))
	// Output:
	// hello
	// [{route /orders/{id}}] true
}

func ExampleHost() {
	fmt.Println(httplimit.Host()(sent))
	// Output: [{host api.example.com}] true
}

func ExampleIP() {
	fmt.Println(httplimit.IP()(sent))
	fmt.Println(httplimit.IP(netip.MustParsePrefix("10.0.0.0/8"))(sent))
	// Output:
	// [{ip 10.0.0.1}] true
	// [{ip 192.0.2.7}] true
}
