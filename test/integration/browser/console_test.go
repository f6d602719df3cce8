package browser

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestWatched: the page shows what happens, also that a node dies, and resets a counter.
func TestWatched(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	b := open(t, nodes[0], 1280, 900, false)
	b.shows("#age", "live")
	b.shows("#self", "n1")
	b.shows("#status", "Healthy")
	b.shows("#cluster", "3 members, 3 with quorum")
	b.shows("#member-rows", "n3")
	b.view("rules/shop")
	b.shows("#rule-none", "No checks in the last five minutes")
	b.do(chromedp.Click("#rule-idle"))
	b.shows("#rule-rows", "requests per user")
	b.shows("#rule-rows", "5 in 1m")

	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	load.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := nodes[n%2].check("", entry{"path", "/secret-page"}); err != nil && ctx.Err() == nil {
				t.Errorf("a check failed: %v", err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	b.truly("checks are shown", `parseFloat(document.querySelector("#t-allowed").textContent) > 20 && parseFloat(document.querySelector("#t-shadowed").textContent) > 5`)
	b.truly("the rule shows them, the busiest first", `document.querySelector("#rule-rows tr").textContent.includes("other pages") && [...document.querySelectorAll("#rule-rows tr")].some((r) => r.textContent.includes("other pages") && parseFloat(r.querySelector("[data-label=Shadowed]").textContent) > 5)`)
	b.shows("#frequent-rows", "path=/secret-page")
	b.truly("a slot has a chart", `document.querySelector("#rule-rows svg.spark path.ps") !== null`)
	b.truly("the busiest key has a share of the limit", `parseFloat(document.querySelector("#rule-rows tr [data-label=Utilization]").textContent) > 5`)
	b.do(chromedp.Click("#rule-head th:first-child button"))
	b.truly("the rules are sorted by name", `document.querySelector("#rule-head th").ariaSort === "ascending" && [...document.querySelectorAll("#rule-rows th .mono")].every((e, i, all) => !i || all[i - 1].textContent <= e.textContent)`)
	b.view("keys")

	// A key from the list, looked into by a click.
	b.do(chromedp.Click("#frequent-rows a"))
	b.shows("#inspection h3", "other pages")
	if at := js[string](b, "location.hash"); at != "#/inspect/shop/path%3D%2Fsecret-page" {
		t.Errorf("the URL of the key is %q", at)
	}
	js[bool](b, "(history.back(), true)")
	b.truly("back leads to the keys", `!document.querySelector("[data-view=keys]").hidden`)

	// A counter that is used up, and reset.
	for i := range 6 {
		if ok, err := nodes[1].check("", entry{"user", "ann"}, entry{"action", "checkout"}); err != nil || ok != (i < 5) {
			t.Fatalf("check %d: %v %v", i, ok, err)
		}
	}
	b.inspect("shop", "user=ann action=checkout")
	b.shows("#inspection h3", "shop/user/action=checkout")
	b.shows("#inspection", "redacted:")
	b.truly("5 of 5 are spent", `document.querySelector("#inspection td[data-label=Spent]").textContent === "5"`)
	if at := js[string](b, "location.href"); strings.Contains(at, "ann") {
		t.Errorf("a private value is in the URL %q", at)
	}
	if hash := b.text("#inspection .facts code"); strings.Contains(hash, "ann") {
		t.Errorf("shown elsewhere as %q", hash)
	}
	if top := b.text("[data-view=keys]"); strings.Contains(top, "ann") {
		t.Errorf("a private value is among the keys: %q", top)
	}
	b.do(chromedp.Click("#reset-open"))
	b.shows("#reset-key", "shop user=ann action=checkout")
	b.do(chromedp.Click("#reset-form button[type=submit]"))
	b.truly("nothing is spent any more", `document.querySelector("#inspection td[data-label=Spent]")?.textContent === "0"`)
	b.shows("#say", "reset by n")
	if ok, err := nodes[0].check("", entry{"user", "ann"}, entry{"action", "checkout"}); err != nil || !ok {
		t.Errorf("after the reset: %v %v", ok, err)
	}

	// Units that are reserved.
	res, err := http.Post("http://"+nodes[0].http+"/v1/reserve", "application/json", strings.NewReader(`{"domain":"shop","descriptor":["user=ann","action=checkout"],"units":3}`))
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("reserved: %v %v", res, err)
	}
	res.Body.Close()
	b.inspect("shop", "user=ann action=checkout")
	b.shows("#held", "reservation")
	b.truly("3 units are held", `document.querySelector("#held td[data-label=Units]").textContent === "3"`)
	b.shows("#inspection", "The oldest is from")

	// n3 dies while it is watched.
	if err := nodes[2].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.truly("n3 is seen to be gone", `[...document.querySelectorAll("#member-rows tr.gone")].some((r) => r.textContent.startsWith("n3"))`)
	b.shows("#say", "n3")
	b.shows("#cluster", "2 with quorum")
	b.shows("#status", "Degraded")
	b.shows("#causes", "n3")
	b.truly("the others own all", `[...document.querySelectorAll("#member-rows tr:not(.gone) td[data-label='Partitions owned']")].reduce((n, c) => n + parseInt(c.textContent), 0) === 1021`)
	b.shows("#age", "live")

	// The page's own node stops: it says so, and stop takes no longer for who watches.
	stop()
	load.Wait()
	began := time.Now()
	if err := nodes[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.shows("#status", "No connection to n1")
	b.shows("#age", "last update")
	b.shows("#say", "The connection to n1 is lost")
	if err := nodes[0].cmd.Wait(); err != nil || time.Since(began) > 15*time.Second {
		t.Errorf("stopping took %v: %v", time.Since(began), err)
	}
}

// TestTokens: without a login the page shows nothing and asks for one, and what a token does not grant is rejected.
func TestTokens(t *testing.T) {
	t.Parallel()
	file, tokens := callers(t)
	nodes := startCluster(t, "--callers", file)
	b := openAt(t, "http://"+nodes[0].http+"/console", 1280, 900, false)
	b.truly("the page asks for a token", `document.activeElement.id === "token"`)
	b.shows("#status", "Not signed in")
	if rows := b.text("#member-rows") + b.text("#rule-rows"); rows != "" {
		t.Errorf("shown to nobody: %q", rows)
	}
	enter := func(token string) {
		b.do(chromedp.SendKeys("#token", token+kb.Enter))
	}
	enter("sluice_wrong")
	b.truly("it asks again", `document.querySelector("#signin-why").textContent.includes("rejected this token")`)
	enter(tokens["viewer"])
	b.shows("#age", "live")
	b.shows("#member-rows", "n3")
	if where := js[string](b, `location.href + document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)`); strings.Contains(where, tokens["viewer"]) || strings.Contains(where, "sluice-") {
		t.Errorf("a script can read the token or the session: %s", where)
	}
	b.inspect("shop", "user=ann")
	b.shows("#inspection h3", "requests per user")
	if js[bool](b, `document.querySelector("#reset-open") !== null`) {
		t.Error("a viewer is offered a reset")
	}
	// Nor does the node let it, whatever the page does.
	for token, want := range map[string]int{"": 401, tokens["viewer"]: 403, tokens["tenant"]: 403, tokens["operator"]: 200} {
		req, err := http.NewRequest("POST", "http://"+nodes[1].http+"/console/api/inspect/reset", strings.NewReader(`{"domain":"shop","descriptor":[{"key":"user","value":"ann"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("reset: %d, want %d", res.StatusCode, want)
		}
	}
	use := func(token string) {
		b.do(chromedp.Click("#sign"))
		enter(token)
		b.truly("the token is taken", `document.querySelector("[data-view=signin]").hidden`)
	}
	use(tokens["operator"])
	b.shows("#age", "live")
	b.inspect("shop", "user=ann")
	b.truly("an operator is offered a reset", `document.querySelector("#reset-open") !== null`)
	use(tokens["tenant"]) // of one domain
	b.shows("#status", "Signed in for some domains")
	b.inspect("shop", "user=ann")
	b.shows("#inspection h3", "requests per user")
	b.inspect("other", "user=ann")
	b.shows("#inspection", "may not read in the domain")
	b.do(chromedp.Click("#sign"), chromedp.Click("#sign-out"))
	b.shows("#status", "Not signed in")
}

// TestLogin: the address of sluice console logs in once, and its code does not stay in the address.
func TestLogin(t *testing.T) {
	t.Parallel()
	p := startCluster(t)[0]
	out, err := exec.Command(sluice, "console", "--addr", p.grpc).Output()
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(string(out))
	b := openAt(t, address, 1280, 900, false)
	b.shows("#age", "live")
	if at := js[string](b, "location.href"); at != "http://"+p.http+"/console#/overview" {
		t.Errorf("the address is %q", at)
	}
	again := openAt(t, address, 1280, 900, false)
	again.shows("#status", "Not signed in")
	again.shows("#signin-why", "login URL is not valid")
	again.shows("#ways", "sluice console --addr "+p.grpc)
	if js[bool](again, `[...document.querySelectorAll("#sign, #token-form")].some((e) => !e.hidden)`) {
		t.Error("a node without access control asks for a token")
	}
}

// TestReadable: in both colour schemes and on a phone, everything can be read, reached and named.
func TestReadable(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	for _, d := range [][]entry{{{"user", "ann"}}, {{"path", "/search"}}, {{"user", "ann"}, {"action", "checkout"}}} {
		for range 8 {
			if _, err := nodes[0].check("", d...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		width int64
		dark  bool
	}{{1280, false}, {1280, true}, {360, false}, {360, true}} {
		t.Run(fmt.Sprintf("%d, dark %v", c.width, c.dark), func(t *testing.T) {
			b := open(t, nodes[1], c.width, 740, c.dark)
			b.shows("#age", "live")
			b.shows("#limited-rows", "redacted:")
			b.inspect("shop", "user=ann action=checkout")
			b.shows("#inspection", "Counter now")
			for _, view := range []string{"overview", "nodes", "rules", "keys", "inspect", "signin"} {
				b.view(view)
				if view == "rules" {
					b.shows("#rule-rows", "search")
					b.do(chromedp.Click("#rule-idle"), chromedp.Click("#tree-box summary"))
					b.truly("the tree is there", `document.querySelector("#tree li code")`)
				}
				if wide := js[string](b, "%s", sideways); wide != "" {
					t.Errorf("%s: %d wide, the page scrolls sideways: %s", view, c.width, wide)
				}
				for _, fault := range js[[]string](b, "%s", faults) {
					t.Errorf("%s: %s", view, fault)
				}
			}
			if dark := js[bool](b, `matchMedia("(prefers-color-scheme: dark)").matches && getComputedStyle(document.body).backgroundColor === "rgb(15, 22, 27)"`); dark != c.dark {
				t.Errorf("dark is %v", dark)
			}
			// That is worth something only if faults are found.
			js[bool](b, `(document.querySelector("[data-view=signin]").insertAdjacentHTML("beforeend", "<input class=planted><p class=planted>faint</p>"), document.querySelector("p.planted").style.color = "rgb(127 127 127 / .5)", true)`)
			if planted := strings.Join(js[[]string](b, "%s", faults), "; "); !strings.Contains(planted, "input.planted “” has no label") || !strings.Contains(planted, "p.planted “faint” has a contrast of ") {
				t.Errorf("of what was planted, this is found: %q", planted)
			}
		})
	}
}

// sideways names what is wider than the window.
const sideways = `document.documentElement.scrollWidth > innerWidth ? [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && getComputedStyle(e).position !== "absolute").map((e) => e.tagName + "#" + e.id + "." + e.className).join(" ") || "something" : ""`

// faults finds what people who see badly, or use a keyboard or a screen reader, would stumble over. It is written down here in the
// place of axe: names, labels, structure, contrast (WCAG 2.2 AA), targets.
const faults = `(() => {
  const out = [];
  const seen = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden" && !e.closest(".hidden, [aria-hidden=true], .skip, .cards thead");
  const where = (e) => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + (e.className && e.className.baseVal === undefined ? "." + e.className : "") + " “" + e.textContent.trim().slice(0, 30) + "”";
  const all = (s) => [...document.querySelectorAll(s)].filter(seen);
  if (!document.documentElement.lang) out.push("the page has no language");
  if (document.querySelectorAll("main").length !== 1 || document.querySelectorAll("h1").length !== 1) out.push("want one main and one h1");
  let level = 1;
  for (const h of all("main h1, main h2, main h3, main h4")) {
    const l = +h.tagName[1];
    if (l > level + 1) out.push(where(h) + " skips a level");
    level = l;
  }
  for (const s of document.querySelectorAll("section, nav, dialog, [role=region]")) if (!s.ariaLabel && !document.getElementById(s.getAttribute("aria-labelledby"))?.textContent) out.push(where(s) + " has no name");
  for (const i of all("input, select")) if (!i.labels?.length) out.push(where(i) + " has no label");
  for (const b of all("button, a, summary")) if (!b.textContent.trim() && !b.ariaLabel) out.push(where(b) + " has no name");
  for (const s of all("svg")) if (s.getAttribute("role") !== "img" || !s.getAttribute("aria-label")) out.push("a picture has no name");
  for (const i of document.images) if (!i.hasAttribute("alt")) out.push(where(i) + " has no alt");
  for (const t of document.querySelectorAll("table")) {
    if (!t.caption?.textContent) out.push(where(t) + " has no caption");
    for (const h of t.querySelectorAll("th")) if (!h.scope) out.push(where(h) + " has no scope");
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) out.push("id twice: " + id);
  if (document.querySelector("#say").getAttribute("aria-live") !== "polite") out.push("nothing is said");
  if (document.querySelector("[tabindex]:not([tabindex='-1'])")) out.push("the order of tabbing is made up");

  const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return { r: m[0], g: m[1], b: m[2], a: m[3] ?? 1 }; };
  const over = (c, on) => ({ r: c.r * c.a + on.r * (1 - c.a), g: c.g * c.a + on.g * (1 - c.a), b: c.b * c.a + on.b * (1 - c.a), a: 1 });
  const ground = (e) => { const c = rgb(getComputedStyle(e).backgroundColor); return c.a >= 1 ? c : over(c, e.parentElement ? ground(e.parentElement) : { r: 255, g: 255, b: 255, a: 1 }); };
  const light = (c) => { const f = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; return 0.2126 * f(c.r) + 0.7152 * f(c.g) + 0.0722 * f(c.b); };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  for (const e of all("body *")) {
    if (e.closest("svg") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const s = getComputedStyle(e), on = ground(e), got = contrast(over(rgb(s.color), on), on);
    const large = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && +s.fontWeight >= 700;
    if (got < (large ? 3 : 4.5)) out.push(where(e) + " has a contrast of " + got.toFixed(2));
    if (parseFloat(s.fontSize) < 12) out.push(where(e) + " is " + s.fontSize + " small");
  }
  for (const e of all("svg.plot > path")) {
    const s = getComputedStyle(e), box = e.closest("section");
    if (s.stroke !== "none" && !e.matches(".grid") && contrast(rgb(s.stroke), ground(box)) < 3) out.push("a line has a contrast of " + contrast(rgb(s.stroke), ground(box)).toFixed(2));
  }
  for (const e of all("button, input")) {
    const r = e.getBoundingClientRect();
    if (r.height < 24) out.push(where(e) + " is " + r.height + " high");
  }
  return out;
})()`

// TestKeyboard: a counter is inspected and reset without a mouse, and the focus is always where one would look.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	if _, err := nodes[0].check("", entry{"user", "ann"}, entry{"action", "checkout"}); err != nil {
		t.Fatal(err)
	}
	b := open(t, nodes[0], 1280, 900, false)
	b.shows("#age", "live")
	b.view("rules")
	js[bool](b, `(document.querySelector("#rule-idle").click(), true)`) // which does not take the focus
	b.shows("#rule-rows", "search")
	key := func(keys string) { b.do(chromedp.KeyEvent(keys)) }
	focused := func() string {
		return js[string](b, `document.activeElement.id || document.activeElement.textContent.trim()`)
	}
	key(kb.Tab)
	if got := focused(); got != "Skip to the content" {
		t.Errorf("the first stop is %q", got)
	}
	visible := `(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2; })()`
	reach := func(id string) {
		t.Helper()
		for range 60 {
			if focused() == id {
				return
			}
			key(kb.Tab)
			if !js[bool](b, "%s", visible) && focused() != "main" {
				t.Errorf("the focus on %q cannot be seen", focused())
			}
		}
		t.Fatalf("%s cannot be reached", id)
	}
	key(kb.Enter)
	if got := focused(); got != "main" {
		t.Errorf("skipped to %q", got)
	}
	reach("rule-filter")
	key("checkout")
	b.truly("one rule is left", `document.querySelectorAll("#rule-rows tr").length === 1`)
	b.view("inspect")
	reach("i-domain")
	key("shop")
	reach("i-descriptor")
	key("user=ann action=checkout" + kb.Enter)
	b.shows("#inspection", "Counter now")
	if got := focused(); got != "inspection" {
		t.Errorf("after the form the focus is on %q", got)
	}
	reach("reset-open")
	key(kb.Enter)
	b.truly("it asks", `document.querySelector("#reset-dialog").open`)
	if !js[bool](b, `document.querySelector("#reset-dialog").contains(document.activeElement)`) {
		t.Error("the focus is behind the dialog")
	}
	key(kb.Escape)
	b.truly("escape closes it", `!document.querySelector("#reset-dialog").open`)
	if got := focused(); got != "reset-open" {
		t.Errorf("after escape the focus is on %q", got)
	}
	key(kb.Enter)
	b.truly("it asks again", `document.querySelector("#reset-dialog").open`)
	key(kb.Enter) // the first button of the dialog has the focus
	b.truly("it is reset", `document.querySelector("#inspection td[data-label=Spent]")?.textContent === "0"`)
}

// TestHostileText: what callers send cannot become part of the page.
func TestHostileText(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	const evil = `<img src=x onerror="document.title='owned'">`
	for range 3 {
		if _, err := nodes[0].check("", entry{"path", evil}); err != nil {
			t.Fatal(err)
		}
	}
	b := open(t, nodes[0], 1280, 900, false)
	b.view("keys")
	b.shows("#frequent-rows", "<img src=x")
	b.do(chromedp.Click("#frequent-rows a"))
	b.shows("#inspection h3", "other pages")
	if js[bool](b, `document.title === "owned" || document.querySelector("main img") !== null`) {
		t.Error("the page has run what a caller has sent")
	}
}
