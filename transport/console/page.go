package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"

	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

//go:embed page
var files embed.FS

// policy lets the page have what came with it and ask where it came from, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pages are the paths of the page's files.
var pages = map[string]string{
	"/console": "index.html", "/console/console.css": "console.css", "/console/console.js": "console.js",
	"/console/charts.js": "charts.js", "/console/client.js": "client.js", "/console/icon.svg": "icon.svg",
}

// types are not left to the machine's own table.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// mountPage serves the page, which says nothing about the cluster: everybody may have it.
func mountPage(mux *http.ServeMux) {
	for at, file := range pages {
		data, err := files.ReadFile("page/" + file)
		if err != nil {
			panic("console: " + err.Error()) // it was compiled in
		}
		sum := sha256.Sum256(data)
		tag := `"` + hex.EncodeToString(sum[:8]) + `"`
		kind := types[path.Ext(file)]
		mux.HandleFunc(at, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Security-Policy", policy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("X-Frame-Options", "DENY")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Cross-Origin-Resource-Policy", "same-origin")
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				h.Set("Allow", "GET, HEAD")
				httpanswer.Refuse(w, httpanswer.NewProblem(http.StatusMethodNotAllowed, "want GET, HEAD"))
				return
			}
			// Asked for again each time, and sent only if it is another: a node that was upgraded shows its own page.
			h.Set("Cache-Control", "no-cache")
			h.Set("ETag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			h.Set("Content-Type", kind)
			if r.Method == http.MethodGet {
				_, _ = w.Write(data)
			}
		})
	}
	mux.HandleFunc("/console/{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/console", http.StatusMovedPermanently)
	})
}
