// A web server that limits each user, and each address of guests.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/httplimit"
)

func main() {
	c, err := sluice.New(os.Getenv("SLUICE"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	limits := httplimit.Middleware(c, httplimit.Config{
		Domain: "shop",
		Keys:   []httplimit.Key{httplimit.First(httplimit.Header("user", "X-User"), httplimit.IP())},
	})
	log.Fatal(http.ListenAndServe(os.Getenv("LISTEN"), limits(mux)))
}
