// A login that denies a user after three wrong passwords within an hour.
package main

import (
	"log"
	"net/http"
	"os"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/httplimit"
)

func login(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("password") != "secret" {
		http.Error(w, "wrong password", http.StatusUnauthorized)
	}
}

func main() {
	c, err := sluice.New(os.Getenv("SLUICE")) // the rule says on_failure: closed, and the client obeys
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	limits := httplimit.Middleware(c, httplimit.Config{
		Domain: "shop",
		Keys:   []httplimit.Key{httplimit.From("login", func(r *http.Request) string { return r.FormValue("user") })},
		ChargeIf: func(status int) int64 { // only a wrong password stays spent
			if status == http.StatusUnauthorized {
				return 1
			}
			return 0
		},
	})
	log.Fatal(http.ListenAndServe(os.Getenv("LISTEN"), limits(http.HandlerFunc(login))))
}
