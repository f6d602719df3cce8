import * as client from "/console/client.js";
import { kinds, plot } from "/console/charts.js";

const $ = (id) => document.getElementById(id);
const empty = () => ({ allowed: [], denied: [], shadowed: [], failed: [] });

// el makes an element: el("td", {class: "num", "data-label": "Denied"}, "3").
function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== undefined && v !== false) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.filter((c) => c !== undefined && c !== null && c !== ""));
  return e;
}

// put makes rows those of body, and leaves elements in their place whose content has not changed: who reads or has the
// focus there is not disturbed. rows are [key, content as text, function that makes the row].
function put(body, rows) {
  const before = new Map([...body.children].map((r) => [r.dataset.key, r]));
  let at = body.firstElementChild;
  for (const [key, content, make] of rows) {
    let row = before.get(key);
    before.delete(key);
    if (row && row.dataset.content !== content) {
      const held = row.contains(document.activeElement);
      const made = make();
      if (at === row) at = made;
      row.replaceWith(made);
      if (held) made.querySelector("button, a")?.focus();
      row = made;
    }
    row ||= make();
    row.dataset.key = key;
    row.dataset.content = content;
    if (row === at) at = at.nextElementSibling;
    else body.insertBefore(row, at);
  }
  for (const r of before.values()) r.remove();
}

const many = (n, one, more = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;
const list = (names) => names.join(", ") || "none";

function rate(n) {
  if (n === 0) return "0";
  if (n < 0.1) return "<0.1";
  return n.toLocaleString("en", { maximumFractionDigits: n < 100 ? 1 : 0 });
}

function duration(s) {
  if (s <= 0) return "0";
  if (s < 1e-3) return +(s * 1e6).toPrecision(3) + " µs";
  if (s < 1) return +(s * 1e3).toPrecision(3) + " ms";
  if (s < 60) return +s.toFixed(1) + " s";
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([unit]) => s >= unit);
  const [big, small] = parts.slice(first, first + 2);
  const rest = small ? Math.round((s % big[0]) / small[0]) : 0;
  return `${Math.floor(s / big[0])} ${big[1]}` + (rest ? ` ${rest} ${small[1]}` : "");
}

const spell = (e) => `${e.key}=` + (/[\s"]/.test(e.value) ? JSON.stringify(e.value) : e.value);
const spellAll = (descriptor) => descriptor.map(spell).join(" ");

// say tells those who cannot see it.
function say(text) {
  if ($("say").textContent !== text) $("say").textContent = text;
}

function notice(text) {
  $("notice").hidden = !text;
  if ($("notice").textContent !== text) $("notice").textContent = text;
}

// ---- what is known ----

const known = { state: null, total: empty(), byRule: new Map(), rulesHash: null, tree: null, slots: 60 };
const ruleKey = (r) => r.domain + "\n" + r.name;

function onHistory(h) {
  known.total = h.total;
  known.slots = h.total.allowed.length;
  known.byRule = new Map(h.by_rule.map((r) => [ruleKey(r), r]));
  drawCharts();
}

function onSlot(h) {
  const push = (s, now) => {
    for (const k of kinds) {
      s[k] = [...s[k], now ? now[k][0] : 0].slice(-known.slots);
      while (s[k].length < known.slots) s[k].unshift(0);
    }
  };
  push(known.total, h.total);
  const now = new Map(h.by_rule.map((r) => [ruleKey(r), r]));
  for (const [key, r] of now) if (!known.byRule.has(key)) known.byRule.set(key, { ...empty(), domain: r.domain, name: r.name });
  for (const [key, r] of known.byRule) push(r, now.get(key));
  drawCharts();
}

function onState(s) {
  const before = known.state;
  known.state = s;
  connected();
  $("self").textContent = " of " + s.self;
  document.title = s.self + " – sluice console";
  drawTraffic(s);
  drawMembers(s);
  drawRules(s);
  if (before) announce(before, s);
  if (s.rules !== known.rulesHash) {
    known.rulesHash = s.rules;
    loadRules();
  }
}

// announce says what has changed among the members.
function announce(before, s) {
  const was = new Map(before.members.map((m) => [m.name, m]));
  const news = [];
  for (const m of s.members) {
    const old = was.get(m.name);
    was.delete(m.name);
    if (!old) news.push(`${m.name} has appeared`);
    else if (old.own && !m.own) news.push(`${m.name} does not answer`);
    else if (!old.own && m.own) news.push(`${m.name} answers again`);
    else if (old.own && m.own && old.own.may_decide !== m.own.may_decide) news.push(`${m.name} may ${m.own.may_decide ? "decide again" : "not decide any more"}`);
  }
  for (const name of was.keys()) news.push(`${name} is gone`);
  if (news.length) say(news.join("; ") + ".");
}

// ---- traffic ----

function drawTraffic(s) {
  const t = s.total;
  const all = t.allowed + t.denied + t.shadowed + t.failed;
  $("t-all").textContent = rate(all);
  for (const k of kinds) {
    $("t-" + k).replaceChildren(rate(t[k]), all > 0 && t[k] > 0 ? el("small", {}, `${rate((100 * t[k]) / all)} %`) : "");
  }
  $("t-p50").textContent = s.latency.calls ? duration(s.latency.p50) : "–";
  $("t-p99").textContent = s.latency.calls ? duration(s.latency.p99) : "–";
  $("foot").textContent = s.missing.length ? "No response from: " + s.missing.join(", ") + "." : "";
}

function inWords(series) {
  return kinds
    .filter((k) => k === "allowed" || series[k].some((v) => v > 0))
    .map((k) => `${k}: ${rate(series[k].at(-1) || 0)} at last, ${rate(Math.max(0, ...series[k]))} at most`)
    .join("; ");
}

function drawCharts() {
  const [e, most] = plot(known.total, "Checks a second, " + inWords(known.total), true);
  const mark = (at, n) => el("span", { class: "scale " + at, "aria-hidden": "true" }, rate(n));
  $("chart").replaceChildren(e, mark("top", most), mark("mid", most / 2));
  if (known.state) drawRules(known.state);
}

// ---- members ----

function drawMembers(s) {
  const deciding = s.members.filter((m) => m.own?.may_decide).length;
  const sum = (f) => s.members.reduce((n, m) => n + (m.own ? m.own.partition_counts[f] : 0), 0);
  const moving = sum("handing_over");
  const parts = [
    `${many(s.members.length, "member")}, ${deciding} of them may decide`,
    s.voter_set ? `voter set of ${s.voter_set.members.length}, version ${s.voter_set.version}` : "no voter set is known",
    `${many(s.partitions, "partition")}, ${moving + sum("taking_over") ? `${moving} being handed over and ${sum("taking_over")} being taken over` : "none moving"}`,
  ];
  const hashes = new Set(s.members.filter((m) => m.own).map((m) => m.own.rules));
  if (hashes.size > 1) parts.push("nodes have different rules");
  $("cluster").textContent = parts.join(" · ");
  put($("member-rows"), s.members.map((m) => [m.name, JSON.stringify({ ...m, self: s.self, silent: m.silent && Math.round(m.silent) }), () => memberRow(m, s)]));
}

function memberRow(m, s) {
  const o = m.own;
  const cell = (label, attributes, ...children) => el("td", { "data-label": label, ...attributes }, el("span", {}, ...children));
  const state = [m.state];
  if (!m.voter) state.push(el("span", { class: "sub" }, "not a voter"));
  if (!m.alive) state.push(el("span", { class: "sub" }, m.silent === undefined ? "not heard from" : `silent for ${duration(Math.round(m.silent))}`));
  const decides = !o ? [el("span", { class: "empty" }, "does not respond")]
    : o.may_decide ? [el("span", { class: "yes" }, "yes")] : [el("span", { class: "no" }, "no"), el("span", { class: "sub" }, o.reason || "")];
  const bar = el("i");
  bar.style.width = Math.min(100, (100 * m.owned) / Math.max(1, m.partitions || s.partitions)) + "%";
  const hands = [];
  if (o) {
    const h = o.partition_counts;
    if (h.handing_over) hands.push(`${h.handing_over} being handed over`);
    if (h.taking_over) hands.push(`${h.taking_over} being taken over`);
    if (h.unprotected) hands.push(`${h.unprotected} without a replica`);
    if (h.below_replicas > h.unprotected) hands.push(`${h.below_replicas} below their number of replicas`);
    if (h.divergent) hands.push(`${h.divergent} to be merged`);
  }
  return el("tr", { class: o && m.alive ? "" : "gone" },
    el("th", { scope: "row" }, m.name, m.name === s.self ? el("span", { class: "sub" }, "this page's node") : null),
    cell("State", {}, ...state),
    cell("May decide", {}, ...decides),
    cell("Partitions owned", {}, `${m.owned.toLocaleString("en")} of ${m.partitions.toLocaleString("en")}`, el("span", { class: "held", "aria-hidden": "true" }, bar), o ? el("span", { class: "sub" }, `replicas of ${o.partition_counts.replicas.toLocaleString("en")}`) : null),
    cell("Handoffs", {}, hands.length ? hands.join(", ") : el("span", { class: "empty" }, o ? "none" : "–")),
    cell("Checks a second", { class: "num" }, o ? rate(o.checks) : "–"),
    cell("Version", {}, m.version || "–"));
}

// ---- rules ----

function drawRules(s) {
  const wanted = $("rule-filter").value.trim().toLowerCase();
  const shown = s.by_rule.filter((r) => (r.domain + " " + r.name).toLowerCase().includes(wanted));
  const busy = (r) => {
    const h = known.byRule.get(ruleKey(r));
    return h ? kinds.reduce((n, k) => n + h[k].reduce((a, b) => a + b, 0), 0) : 0;
  };
  const weights = new Map(shown.map((r) => [r, busy(r)]));
  shown.sort((a, b) => weights.get(b) - weights.get(a) || ruleKey(a).localeCompare(ruleKey(b)));
  const most = 50;
  put($("rule-rows"), shown.slice(0, most).map((r) => {
    const h = known.byRule.get(ruleKey(r));
    return [ruleKey(r), JSON.stringify([r, h && kinds.map((k) => h[k])]), () => ruleRow(r, h)];
  }));
  const left = shown.length - most;
  const text = !s.by_rule.length ? "This cluster has no rules." : !shown.length ? "No rule matches the filter." : left > 0 ? `${many(left, "more rule")}: narrow them down above.` : "";
  $("rule-none").textContent = text;
  $("rule-none").hidden = !text;
}

function ruleRow(r, h) {
  const cell = (label, n) => el("td", { class: "num", "data-label": label }, el("span", {}, rate(n)));
  let line = el("span", { class: "empty" }, "nothing");
  if (h) {
    [line] = plot(h, `${r.name}, checks a second, ${inWords(h)}`);
    line.classList.add("spark");
  }
  return el("tr", { class: h ? "" : "idle" },
    el("th", { scope: "row" }, el("span", { class: "mono" }, r.name), r.name === r.domain || r.name.startsWith(r.domain + "/") ? null : el("span", { class: "sub" }, "in " + r.domain)),
    el("td", { "data-label": "Five minutes" }, line),
    cell("Allowed", r.allowed), cell("Denied", r.denied), cell("Shadowed", r.shadowed), cell("Failed", r.failed));
}

async function loadRules() {
  try {
    known.tree = await client.rules();
  } catch {
    return; // the next state asks again if they have changed; watching says what is wrong
  }
  $("domains").replaceChildren(...known.tree.domains.map((d) => el("option", { value: d })));
  $("tree").replaceChildren(...known.tree.domains.map((d) => treeOf(d, known.tree.rules.filter((r) => r.domain === d))));
}

// treeOf nests the rules of a domain by the levels that lead to them.
function treeOf(domain, rules) {
  const top = { children: new Map() };
  for (const r of rules) {
    let at = top;
    for (const l of r.path) {
      const name = l.key + (l.value ? "=" + l.value : "");
      if (!at.children.has(name)) at.children.set(name, { name, redact: false, children: new Map() });
      at = at.children.get(name);
      at.redact ||= l.redact;
    }
    at.rule = r;
  }
  const draw = (n) => el("li", {}, el("code", {}, n.name), n.redact ? tag("redacted") : null, ...(n.rule ? ruleFacts(n.rule, n) : []),
    n.children.size ? el("ul", {}, ...[...n.children.values()].map(draw)) : null);
  return el("ul", { class: "tree" }, el("li", {}, el("strong", {}, domain), el("ul", {}, ...[...top.children.values()].map(draw))));
}

const tag = (text) => el("span", { class: "tag" }, text);

function ruleFacts(r) {
  return [el("span", { class: "sub" }, r.limits.join(" and "), ` (${r.name}, ${r.file}:${r.line})`), ...r.notes.map(tag)];
}

// ---- keys ----

function onTop(t) {
  $("keys-lead").textContent = t.off ? "This node does not count top keys: start it with --top-keys=local or on."
    : `Over the last ${duration(Math.round(t.covers))}.` + (t.missing.length ? ` No response from ${list(t.missing)}.` : "");
  for (const [id, keys] of [["limited-rows", t.limited], ["frequent-rows", t.frequent]]) {
    const rows = keys.slice(0, 10).map((k) => {
      const text = spellAll(k.descriptor) + (k.cut ? " …" : "");
      return [k.domain + "\n" + text, JSON.stringify(k), () => keyRow(k, text)];
    });
    if (!rows.length) rows.push(["", "", () => el("tr", {}, el("td", { colspan: 2, class: "empty" }, t.off ? "–" : "none"))]);
    put($(id), rows);
  }
}

function keyRow(k, text) {
  const whole = !k.cut && !k.descriptor.some((e) => e.value.startsWith("redacted:"));
  const name = whole
    ? el("button", { type: "button", class: "keylink mono", title: "Inspect this key", onclick: () => inspectKey(k.domain, spellAll(k.descriptor)) }, text)
    : el("span", { class: "mono" }, text);
  return el("tr", {}, el("th", { scope: "row" }, name, el("span", { class: "sub" }, k.domain)), el("td", { class: "num" }, rate(k.per_second)));
}

// ---- inspect ----

// readDescriptor reads key=value entries with spaces between them; a value, or an entry, may be quoted as in JSON.
function readDescriptor(text) {
  const out = [];
  let rest = text.trim();
  while (rest) {
    const m = /^([^\s="]+)(?:=("(?:[^"\\]|\\.)*"|[^\s"]*))?(?=\s|$)/.exec(rest);
    if (!m) throw new Error(`“${rest}” is not key=value`);
    const value = m[2] || "";
    out.push({ key: m[1], value: value.startsWith('"') ? JSON.parse(value) : value });
    rest = rest.slice(m[0].length).trimStart();
  }
  return out;
}

let inspected = null;

function inspectKey(domain, descriptor) {
  $("i-domain").value = domain;
  $("i-descriptor").value = descriptor;
  $("inspect").scrollIntoView();
  inspect(true);
}

async function inspect(focus) {
  try {
    inspected = { domain: $("i-domain").value.trim(), descriptor: readDescriptor($("i-descriptor").value) };
    drawInspection(await client.inspect(inspected));
  } catch (e) {
    rejected(e, () => inspect(focus));
    $("inspection").replaceChildren(el("p", { class: "notice" }, e.message));
  }
  $("inspection").hidden = false;
  if (focus) $("inspection").focus({ preventScroll: false });
}

function drawInspection(x) {
  const facts = el("dl", { class: "facts" });
  const fact = (name, ...what) => facts.append(el("dt", {}, name), el("dd", {}, ...what));
  const typed = spellAll(x.descriptor);
  const shown = spellAll(x.shown);
  if (shown !== typed) fact("Shown elsewhere as", el("code", {}, shown));
  fact("Why", x.reason);
  const parts = [el("h3", {}, x.rule ? "Rule " : "No rule applies", x.rule ? el("code", {}, x.rule.name) : null)];
  if (x.rule) {
    if (x.rule.notes.length) fact("Options", ...x.rule.notes.map(tag));
    fact("Limits", x.rule.limits.join(" and "));
  }
  const counts = x.rule && (x.owner || x.replicas.length || x.missing.length);
  if (counts) {
    fact("Owner", x.owner ? `${x.owner}, of partition ${x.partition} in generation ${x.generation}` : "no node with quorum that owns it has responded");
    fact("Replica", list(x.replicas) + (x.initial_sync.length ? `; initial sync in progress: ${list(x.initial_sync)}` : ""));
    if (x.grants || x.leases.length) fact("Granted", `${many(x.granted, "unit")} in ${many(x.grants, "lease")}` + (x.leases.length ? "; left: " + x.leases.map((l) => `${l.node} ${l.left}`).join(", ") : ""));
    if (x.denying.length) fact("Denial cached by", list(x.denying));
    if (x.missing.length) fact("No response from", list(x.missing));
  }
  parts.push(facts);
  if (x.limits.length) {
    const head = ["Limit", "Spent", "Remaining", "Resets in"];
    parts.push(el("h4", {}, "Counter now"), el("table", { class: "cards" },
      el("caption", { class: "hidden" }, "State of each limit"),
      el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { scope: "col", class: i ? "num" : false }, h)))),
      el("tbody", {}, ...x.limits.map(limitRow))));
    if (!x.counted) parts.push(el("p", { class: "empty" }, "There is no counter: nothing was spent, or the limits have reset."));
  }
  const steps = el("ol", { class: "steps" }, ...x.levels.map((l) => el("li", {}, el("code", {}, spell(l)), el("ul", {}, ...l.tries.map((t) =>
    el("li", {}, (t.matched ? "matched by " : "not by ") + t.how + ": ", el("code", {}, t.written), t.line ? ` (${t.file}:${t.line})` : ""))))));
  if (x.levels.length) parts.push(el("details", {}, el("summary", {}, "How the rule was matched"), steps));
  const again = el("button", { type: "button", class: "quiet", onclick: () => inspect(true) }, "Refresh");
  const reset = x.may_reset && x.limits.length ? el("button", { type: "button", class: "danger", id: "reset-open", onclick: openReset }, "Reset…") : null;
  parts.push(el("p", { class: "actions" }, reset, again));
  $("inspection").replaceChildren(...parts);
}

function limitRow(l) {
  const cell = (label, ...what) => el("td", { class: "num", "data-label": label }, el("span", {}, ...what));
  const unlimited = l.limit >= 2 ** 62;
  const part = unlimited ? 0 : l.limit ? Math.min(1, l.spent / l.limit) : 1;
  const bar = el("i");
  bar.style.width = 100 * part + "%";
  return el("tr", {},
    el("th", { scope: "row" }, l.name, el("span", { class: "sub" }, l.text), el("span", { class: "meter" + (part >= 1 ? " full" : ""), role: "img", "aria-label": `${Math.round(100 * part)} % spent` }, bar)),
    cell("Spent", l.spent.toLocaleString("en")),
    cell("Remaining", unlimited ? "no limit" : l.remaining.toLocaleString("en")),
    cell("Resets in", l.reset_after > 0 ? duration(Math.max(0.1, l.reset_after)) : "–"));
}

function openReset() {
  $("reset-key").textContent = inspected.domain + " " + spellAll(inspected.descriptor);
  $("reset-dialog").showModal();
}

async function reset() {
  $("reset-dialog").close();
  try {
    const done = await client.reset(inspected);
    await inspect(true);
    say(`The counter was reset by ${done.owner}.`);
  } catch (e) {
    rejected(e, reset);
    notice("Not reset: " + e.message);
  }
}

// ---- who asks ----

let retry = null;

// rejected asks for a login if that is what was missing, and goes on with what failed when there is one.
function rejected(e, again) {
  if (e.status !== 401) return false;
  retry = again || retry;
  askLogin("You are not logged in, or the login has expired.");
  return true;
}

function askLogin(why) {
  $("token-why").textContent = why;
  if (!$("token-dialog").open) $("token-dialog").showModal();
  $("token").value = "";
  $("token").focus();
}

// login begins a session and goes on with what failed before.
async function login(code, token) {
  try {
    await client.login(code, token);
  } catch (e) {
    askLogin((code ? "This login address is not valid: " : "The node rejected this token: ") + e.message + ".");
    return;
  }
  notice("");
  known.rulesHash = null;
  const again = retry;
  retry = null;
  watch();
  again?.();
}

// ---- watching ----

let watching = null;
let failures = 0;
let timer = 0;

function link(state, text) {
  $("link").dataset.state = state;
  if ($("link-text").textContent !== text) $("link-text").textContent = text;
}

function connected() {
  if ($("link").dataset.state === "live") return;
  if ($("link").dataset.state === "lost") say("Connected again.");
  link("live", "Live");
  notice("");
  failures = 0;
}

// watch keeps watching while the page is looked at.
async function watch() {
  clearTimeout(timer);
  watching?.abort();
  const mine = (watching = new AbortController());
  let wait = 0;
  try {
    await client.watch({ history: onHistory, state: onState, slot: onSlot, top: onTop }, mine.signal);
    wait = 1000; // the node has ended it: it stops, or this page was too slow
  } catch (e) {
    if (mine.signal.aborted) return;
    if (e.status === 401) {
      link("wait", "Not signed in");
      rejected(e);
      return;
    }
    if (e.status === 403) {
      link("wait", "Not allowed");
      notice(e.message + ". What you may do is still here below; another token may show more.");
      return;
    }
    wait = Math.min(10000, 500 * 2 ** failures++);
    if (e.status) notice(e.message);
  }
  if (mine.signal.aborted) return;
  link("lost", "Lost; trying again");
  say(`The connection to ${known.state?.self || "the node"} is lost. Trying again.`);
  timer = setTimeout(watch, wait);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(timer);
    watching?.abort();
    link("wait", "Paused");
  } else if ($("link").dataset.state === "wait" && !$("token-dialog").open) watch();
});

$("inspect-form").addEventListener("submit", (e) => {
  e.preventDefault();
  inspect(true);
});
$("rule-filter").addEventListener("input", () => known.state && drawRules(known.state));
$("reset-form").addEventListener("submit", (e) => {
  e.preventDefault();
  reset();
});
$("reset-cancel").addEventListener("click", () => $("reset-dialog").close());
$("token-open").addEventListener("click", () => askLogin("Log in as another caller, or log out."));
$("token-cancel").addEventListener("click", () => $("token-dialog").close());
$("token-forget").addEventListener("click", async () => {
  $("token-dialog").close();
  await client.logout().catch(() => {}); // the node forgets the session by itself
  watch();
});
$("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const token = $("token").value.trim();
  $("token").value = "";
  $("token-dialog").close();
  login("", token);
});

// A login address has its code behind the #, which browsers send to nobody. It does not stay in the history.
const code = new URLSearchParams(location.hash.slice(1)).get("login");
if (code) {
  history.replaceState(null, "", location.pathname);
  login(code);
} else watch();
