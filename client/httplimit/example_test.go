package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/httplimit"
)

// three admits three of each descriptor; it stands in for a *client.Client.
type three map[string]int

func (t three) Check(_ context.Context, c client.Check) (client.Decision, error) {
	key := fmt.Sprint(c.Descriptor)
	t[key]++
	d := client.Decision{Source: client.SourceOwned, Limit: 3, Period: time.Minute, RetryAfter: 20 * time.Second, Rule: "shop/user"}
	if d.Remaining = int64(max(0, 3-t[key])); t[key] <= 3 {
		d.Allowed, d.RetryAfter = true, 0
	}
	return d, nil
}

func (t three) CheckAll(ctx context.Context, checks []client.Check) ([]client.Decision, error) {
	var all []client.Decision
	for _, c := range checks {
		d, err := t.Check(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func (t three) Wait(ctx context.Context, c client.Check) (client.Decision, error) {
	return t.Check(ctx, c)
}

func ExampleHandler() {
	limit, err := httplimit.Handler(three{}, httplimit.Config{
		Domain: "shop",
		Keys: []httplimit.Key{
			httplimit.Keys(httplimit.IP(), httplimit.Header("user", "X-User")), // of both together
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }))
	for range 4 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", "anna")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		header := map[string][]string(w.Header()) // by the name as it is sent; Get wants it as Go spells it
		fmt.Println(w.Code, header["RateLimit"][0])
	}
	// Output:
	// 200 "shop/user";r=2;t=0
	// 200 "shop/user";r=1;t=0
	// 200 "shop/user";r=0;t=0
	// 429 "shop/user";r=0;t=20
}

// Several descriptors are one decision: each address has its limit, and each user one on each route.
func ExampleRouteOf() {
	c := three{} // a *client.Client
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "an order") })
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "fine") })
	userOf := func(r *http.Request) string { // or from r.Context()
		name, _, _ := r.BasicAuth()
		return name
	}
	limit, err := httplimit.Handler(c, httplimit.Config{
		Domain: "shop",
		Keys: []httplimit.Key{
			httplimit.IP(netip.MustParsePrefix("10.0.0.0/8")),
			httplimit.Keys(httplimit.User(userOf), httplimit.RouteOf(mux)),
		},
		Skip: func(r *http.Request) bool { return r.URL.Path == "/health" },
	})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/orders/7", nil)
	r.RemoteAddr = "10.0.0.1:1234"
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	r.SetBasicAuth("anna", "secret")
	limit(mux).ServeHTTP(httptest.NewRecorder(), r)
	for _, descriptor := range slices.Sorted(maps.Keys(c)) {
		fmt.Println(descriptor)
	}
	// Output:
	// [{ip 192.0.2.7}]
	// [{user anna} {route /orders/{id}}]
}

// Users are counted by their key, and requests without one by address. Denied clients are not told so.
func ExampleFirst() {
	limit, err := httplimit.Handler(three{}, httplimit.Config{
		Domain:    "shop",
		Keys:      []httplimit.Key{httplimit.First(httplimit.APIKey("X-Api-Key"), httplimit.IP())},
		Shadowban: true, ShadowBody: "thank you",
	})
	if err != nil {
		log.Fatal(err)
	}
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "your comment is published") }))
	for range 4 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/comments", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 your comment is published
	// 200 your comment is published
	// 200 your comment is published
	// 200 thank you
}

func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }))
	defer server.Close()
	c := http.Client{Transport: &httplimit.Transport{Waiter: three{}, Domain: "outbound", Key: httplimit.Host()}}
	res, err := c.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer res.Body.Close()
	fmt.Println(res.StatusCode)
	// Output: 200
}
