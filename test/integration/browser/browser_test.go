package browser

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// tab shows a node's console.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	troubles []string
}

// open shows the console of p in a window of this size, logged in as an operator.
func open(t *testing.T, p *process, width, height int64, dark bool) *tab {
	t.Helper()
	address, err := exec.Command(sluice, "console", "--addr", p.grpc).Output()
	if err != nil {
		t.Fatalf("sluice console: %v %s", err, address)
	}
	return openAt(t, strings.TrimSpace(string(address)), width, height, dark)
}

// openAt shows an address of a console in a window of this size. Errors of the page fail the test, but for rejections, which the
// test asked for.
func openAt(t *testing.T, address string, width, height int64, dark bool, options ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	if chromium == "" {
		t.Skip("there is no Chromium: apt-get install chromium, or say where it is in SLUICE_CHROMIUM")
	}
	options = append(options, chromedp.DefaultExecAllocatorOptions[:]...)
	options = append(options, chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("font-render-hinting", "none"))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(alloc)
	t.Cleanup(closeTab)
	b := &tab{t: t, ctx: ctx}
	err := chromedp.Listen(ctx, func(e any) {
		text := ""
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			text = "exception: " + e.ExceptionDetails.Text
			if x := e.ExceptionDetails.Exception; x != nil {
				text += " " + x.Description
			}
		case *log.EventEntryAdded:
			// Rejected and lost connections; and over HTTP by a name, browsers ignore a header and say so.
			if e.Entry.Source != log.EntrySourceNetwork && !strings.Contains(e.Entry.Text, "Cross-Origin-Opener-Policy header has been ignored") {
				text = string(e.Entry.Level) + ": " + e.Entry.Text
			}
		case *runtime.EventConsoleAPICalled:
			text = "console: " + string(e.Type)
		}
		if text != "" {
			b.mu.Lock()
			b.troubles = append(b.troubles, text)
			b.mu.Unlock()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.colors(dark)
	b.do(chromedp.EmulateViewport(width, height), chromedp.Navigate(address))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.troubles) > 0 {
			t.Errorf("the page has troubles:\n%s", strings.Join(b.troubles, "\n"))
		}
	})
	return b
}

// do runs actions, each for 30 s at most.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// js evaluates an expression.
func js[T any](b *tab, expression string, args ...any) (v T) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](fmt.Sprintf(expression, args...)))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// text is what an element shows, "" if it is not there.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return js[string](b, `document.querySelector(%q)?.innerText ?? ""`, selector)
}

// shows waits until an element's text has want.
func (b *tab) shows(selector, want string) {
	b.t.Helper()
	last := ""
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if last = b.text(selector); strings.Contains(last, want) {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%s shows %q, want %q", selector, last, want)
		}
	}
}

// truly waits until a JavaScript condition holds.
func (b *tab) truly(what, condition string) {
	b.t.Helper()
	until(b.t, what, 20*time.Second, func() bool { return js[bool](b, "Boolean(%s)", condition) })
}

// view goes to a view by its URL.
func (b *tab) view(name string) {
	b.t.Helper()
	js[bool](b, "(location.hash = %q, true)", "#/"+name)
	b.truly("the view "+name, fmt.Sprintf(`!document.querySelector("[data-view=%s]").hidden`, strings.Split(name, "/")[0]))
}

// colors emulates a colour scheme.
func (b *tab) colors(dark bool) {
	b.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		return err
	}))
}

// inspect types a key into the form and asks.
func (b *tab) inspect(domain, descriptor string) {
	b.t.Helper()
	b.view("inspect")
	b.do(chromedp.SetValue("#i-domain", domain), chromedp.SetValue("#i-descriptor", descriptor), chromedp.Click("#inspect-form button[type=submit]"))
}
