// Command mutants changes one place of a package at a time and runs the package's tests on it. A
// change that no test notices, a mutant that survives, is code that no test is about, or code that
// does nothing.
//
//	go -C tools run ./mutants [-n 20] [-seed 1] [-each] [-o FILE] DIR...
//
// DIR is a package's directory, from the root of the tree. Which places are changed depends on the
// seed and the file's text alone. Mutants are tests' overlays of the go command, so that the tree
// stays as it is. After the method of R. DeMillo, R. Lipton and F. Sayward, Hints on Test Data
// Selection, 1978; the operators are those of J. Offutt and others, An Experimental Determination
// of Sufficient Mutant Operators, 1996, and the deletion of statements.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// outcome is what became of a mutant.
type outcome string

const (
	killed    outcome = "killed"
	survived  outcome = "survived"
	uncovered outcome = "uncovered" // no test runs the place
	invalid   outcome = "invalid"   // it does not compile
)

// result is a line of the file of results.
type result struct {
	Dir     string   `json:"dir"`
	Place   string   `json:"place"` // file:line:column
	Change  string   `json:"change"`
	Outcome outcome  `json:"outcome"`
	Tests   []string `json:"tests,omitempty"` // those that failed; with -each all of them
	Seconds float64  `json:"seconds"`
}

type options struct {
	root    string
	n       int
	seed    uint64
	each    bool
	workers int
	args    []string // of go test
}

func main() {
	o := options{}
	flag.IntVar(&o.n, "n", 20, "mutants of each package")
	flag.Uint64Var(&o.seed, "seed", 1, "which places are changed")
	flag.BoolVar(&o.each, "each", false, "name all tests that a mutant fails, rather than the first: slower")
	flag.IntVar(&o.workers, "workers", 2, "mutants at a time")
	out := flag.String("o", "", "append a line of JSON for each mutant to this file")
	test := flag.String("test", "-short", "flags of go test, separated by spaces")
	flag.StringVar(&o.root, "root", "..", "the root of the tree")
	flag.Parse()
	o.args = strings.Fields(*test)
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "mutants: name at least one package's directory, such as ./bucket")
		os.Exit(2)
	}
	file := io.Discard
	if *out != "" {
		f, err := os.OpenFile(*out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
		defer f.Close()
		file = f
	}
	for _, dir := range flag.Args() {
		if err := survey(&o, dir, os.Stdout, file); err != nil {
			fmt.Fprintf(os.Stderr, "mutants: %s: %v\n", dir, err)
			os.Exit(1)
		}
	}
}

// survey tries o.n mutants of the package in dir, and writes those that survive to w and all to
// file.
func survey(o *options, dir string, w, file io.Writer) error {
	began := time.Now()
	cover, took, err := coverage(o, dir)
	if err != nil {
		return err
	}
	all, err := mutantsOf(filepath.Join(o.root, dir))
	if err != nil {
		return err
	}
	h := fnv.New64a()
	h.Write([]byte(dir))
	rng := rand.New(rand.NewPCG(o.seed, h.Sum64()))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })

	var mu sync.Mutex // of next, results and the writers
	next, counts := 0, make(map[outcome]int)
	encoder := json.NewEncoder(file)
	encoder.SetEscapeHTML(false)
	var workers sync.WaitGroup
	var failed error
	for range o.workers {
		workers.Go(func() {
			for {
				mu.Lock()
				tried := counts[killed] + counts[survived] + counts[uncovered]
				if failed != nil || next == len(all) || tried >= o.n {
					mu.Unlock()
					return
				}
				m := all[next]
				next++
				mu.Unlock()
				r := result{Dir: dir, Place: m.place(), Change: m.what}
				at := time.Now()
				var err error
				if cover.has(m) {
					r.Outcome, r.Tests, err = try(o, dir, m, max(5*took, 20*time.Second))
				} else {
					r.Outcome = uncovered
				}
				r.Seconds = time.Since(at).Round(100 * time.Millisecond).Seconds()
				mu.Lock()
				if err != nil {
					failed = err
				} else if tried := counts[killed] + counts[survived] + counts[uncovered]; r.Outcome == invalid || tried < o.n {
					counts[r.Outcome]++
					if r.Outcome == survived || r.Outcome == uncovered {
						fmt.Fprintf(w, "%-9s %s: %s\n", r.Outcome, filepath.Join(dir, r.Place), r.Change)
					}
					if err := encoder.Encode(r); err != nil {
						failed = err
					}
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	fmt.Fprintf(w, "%s: %d of %d places tried: %d killed, %d survived, %d uncovered; %d more did not compile; %v\n", dir,
		counts[killed]+counts[survived]+counts[uncovered], len(all), counts[killed], counts[survived], counts[uncovered], counts[invalid],
		time.Since(began).Round(time.Second))
	return failed
}

// goTest runs the tests of dir with more flags.
func goTest(ctx context.Context, o *options, dir string, more ...string) (output []byte, err error) {
	c := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-vet=off", "-count=1"}, o.args, more, []string{"."})...)
	c.Dir, c.WaitDelay = filepath.Join(o.root, dir), 5*time.Second
	return c.CombinedOutput()
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// try runs the tests on m.
func try(o *options, dir string, m mutant, most time.Duration) (outcome, []string, error) {
	tmp, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(tmp)
	changed := filepath.Join(tmp, filepath.Base(m.file))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err != nil {
		return "", nil, err
	}
	overlayFile := filepath.Join(tmp, "overlay.json")
	if err := errors.Join(os.WriteFile(changed, m.text, 0o644), os.WriteFile(overlayFile, overlay, 0o644)); err != nil {
		return "", nil, err
	}
	// A mutant may ask for memory without end.
	more := []string{"-overlay", overlayFile, "-timeout", most.String(), "-exec", `sh -c 'ulimit -v 16777216; exec "$0" "$@"'`}
	if !o.each {
		more = append(more, "-failfast")
	}
	ctx, cancel := context.WithTimeout(context.Background(), most+time.Minute)
	defer cancel()
	output, err := goTest(ctx, o, dir, more...)
	switch {
	case err == nil:
		return survived, nil, nil
	case bytes.Contains(output, []byte("[build failed]")):
		return invalid, nil, nil
	}
	var tests []string
	for _, name := range failedTest.FindAllSubmatch(output, -1) {
		tests = append(tests, string(name[1]))
	}
	if len(tests) == 0 {
		tests = append(tests, "(the process ended)")
	}
	return killed, tests, nil
}
