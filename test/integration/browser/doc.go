// Package browser looks at the console as people do: in a browser, headless Chromium, against three processes of the
// built binary. It is a module of its own so that sluice does not depend on what drives the browser. Where there is no Chromium
// the tests are skipped and say so, unless SLUICE_CHROMIUM=required. SLUICE_CHROMIUM may also be the path to one.
//
// With -shots DIR, TestShots writes the pictures of docs/operate/console.md there.
package browser
