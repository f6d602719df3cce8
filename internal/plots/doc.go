// Command plots draws the pictures of docs/algorithms.md and docs/guide.md that show what is admitted: it asks package
// bucket the same demand under every algorithm, at times that it makes up, and writes what was answered as SVG.
// `make plots` runs it; a test fails when a picture is not what it draws.
package main
