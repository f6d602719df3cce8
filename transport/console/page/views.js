// The views of the cluster: Overview, Nodes, Rules and Keys. Each shows what the node has sent last.

import * as client from "/console/client.js";
import { Chart, spark } from "/console/charts.js";
import { $, bytes, duration, el, list, many, meter, percent, put, rate, spellAll, tag } from "/console/dom.js";
import { linkTo } from "/console/inspect.js";

const kinds = ["allowed", "denied", "shadowed", "failed"];
const quantiles = [["p50", "allowed"], ["p95", "shadowed"], ["p99", "denied"]];

// ---- what is known ----

// slots has those of the history by number, each {nodes, members, total, byRule, p50, p95, p99}; last is the newest.
const known = { state: null, slots: new Map(), last: 0, slotTime: 5, count: 60, tree: null, top: null };
const ruleKey = (r) => r.domain + "\n" + r.name;

export const state = () => known.state;

// onHistory takes the slots of a history, of which the page may have some.
export function onHistory(h) {
  const n = h.nodes.length;
  const last = Math.round(h.until / h.slot) - 1;
  if (n > 3 || last < known.last) known.slots.clear();
  [known.last, known.slotTime, known.count] = [last, h.slot, Math.max(n, known.count)];
  const at = (series, i) => Object.fromEntries(kinds.map((k) => [k, series[k][i]]));
  for (let i = 0; i < n; i++) {
    const byRule = new Map(h.by_rule.map((r) => [ruleKey(r), at(r, i)]));
    known.slots.set(last - (n - 1 - i), { nodes: h.nodes[i], members: h.members[i], total: at(h.total, i), byRule, p50: h.p50[i], p95: h.p95[i], p99: h.p99[i] });
  }
  for (const s of known.slots.keys()) if (s <= last - known.count) known.slots.delete(s);
  drawCharts();
  if (known.state) drawRules();
}

// history returns what of gives for each slot, and null for those that no node knows.
function history(of) {
  return Array.from({ length: known.count }, (_, i) => {
    const s = known.slots.get(known.last - known.count + 1 + i);
    return s?.nodes ? of(s) : null;
  });
}

// onState returns false if the rules are to be loaded.
export function onState(s) {
  known.state = s;
  const self = s.members.find((m) => m.name === s.self);
  $("self").textContent = ` ${s.self}`;
  $("about").replaceChildren(...[self?.version, s.voter_set && el("span", { title: "Cluster ID " + s.voter_set.cluster_id }, "cluster " + s.voter_set.cluster_id.slice(0, 8))].filter(Boolean).flatMap((x, i) => (i ? [" · ", x] : [x])));
  drawTraffic(s);
  drawNodes(s);
  drawRegions(s.regions || []);
  drawRules();
  return known.tree?.hash === s.rules;
}

export async function loadRules() {
  try {
    known.tree = await client.rules();
  } catch {
    return; // the next state asks again; watching says what is wrong
  }
  const domains = known.tree.domains;
  $("domains").replaceChildren(...domains.map((d) => el("option", { value: d })));
  $("rule-domain").replaceChildren(el("option", { value: "" }, "all"), ...domains.map((d) => el("option", { value: d }, d)));
  selectDomain(ruleView.domain);
  if (known.state) drawRules();
}

// ruleOf returns the rule in force with this name.
const ruleOf = (domain, name) => known.tree?.rules.find((r) => r.domain === domain && r.name === name);

// ---- overview ----

const charts = { checks: new Chart($("chart"), (n) => (n < 1 ? String(+n.toPrecision(2)) : rate(n))), latency: new Chart($("latency"), duration) };

function drawTraffic(s) {
  const t = s.total;
  const all = t && kinds.reduce((n, k) => n + t[k], 0);
  $("t-all").textContent = t ? rate(all) : "–";
  for (const k of kinds) {
    $("t-" + k).replaceChildren(t ? rate(t[k]) : "–", t && t[k] > 0 ? el("small", {}, percent(t[k] / all)) : "");
  }
}

function inWords(series) {
  const numbers = (s) => s.values.filter((v) => v !== null);
  return series.map((s) => `${s.name}: ${rate(numbers(s).at(-1) || 0)} at last, ${rate(Math.max(0, ...numbers(s)))} at most`).join("; ");
}

// used leaves out series without any check, but for the first.
const used = (series) => series.filter((s, i) => !i || s.values.some((v) => v > 0));

function drawCharts() {
  const slots = { slot: known.slotTime, until: (known.last + 1) * known.slotTime, nodes: history((s) => s.nodes).map((n) => n || 0), members: history((s) => s.members).map((n) => n || 0) };
  const checks = used(kinds.map((kind) => ({ kind, name: kind, values: history((s) => s.total[kind]) })));
  charts.checks.show({ ...slots, series: checks, label: "Checks per second in the last five minutes, " + inWords(checks) });
  const times = quantiles.map(([name, kind]) => ({ kind, name, values: history((s) => s[name]) }));
  charts.latency.show({ ...slots, series: times, label: "Latency in the last five minutes: " + times.map((s) => `${s.name} ${duration(s.values.at(-1) || 0)}`).join(", ") });
  const newest = known.slots.get(known.last);
  for (const [name] of quantiles) $("t-" + name).textContent = typeof newest?.[name] === "number" ? duration(+newest[name].toPrecision(2)) : "–";
}

// ---- nodes ----

function drawNodes(s) {
  const sum = (f) => s.members.reduce((n, m) => n + (m.own ? m.own.partition_counts[f] : 0), 0);
  const moving = [[sum("handing_over"), "being handed over"], [sum("taking_over"), "being taken over"]].filter(([n]) => n).map(([n, how]) => `${n} ${how}`);
  $("cluster").textContent = [
    `${many(s.members.length, "member")}, ${s.members.filter((m) => m.own?.may_decide).length} with quorum`,
    s.voter_set ? `voter set of ${s.voter_set.members.length}, version ${s.voter_set.version}` : "no voter set is known",
    `${many(s.partitions, "partition")}, ${moving.join(" and ") || "none moving"}`,
  ].join(" · ");
  put($("member-rows"), s.members.map((m) => [m.name, JSON.stringify({ ...m, self: s.self, silent: m.silent && Math.round(m.silent) }), () => nodeRow(m, s)]));
}

const cell = (label, attributes, ...children) => el("td", { "data-label": label, ...attributes }, el("span", {}, ...children));
const sub = (...what) => el("span", { class: "sub" }, ...what);

// The class of a region's state.
const links = { linked: "yes", unreached: "no", unusable: "no" };

function drawRegions(regions) {
  $("regions").hidden = !regions.length;
  put($("region-rows"), regions.map((r) => {
    const bad = links[r.state] === "no";
    return [r.name, JSON.stringify({ ...r, in_state: bad && r.in_state }), () => el("tr", { class: bad ? "gone" : "" },
      el("th", { scope: "row" }, r.name, r.self ? sub("this region") : null),
      cell("State", {}, ...(r.self ? [] : [el("span", { class: links[r.state] || "empty" }, links[r.state] ? r.state : "not known yet")]),
        bad ? sub(`for ${duration(r.in_state)}` + (r.linked ? `, linked from ${r.linked} of ${many(r.of, "node")}` : "")) : null, r.reason ? sub(r.reason) : r.self ? "–" : null),
      cell("Round trip", { class: "num" }, r.rtt ? duration(r.rtt) : "–", r.rtt && bad ? sub("as it was") : null),
      cell("Weight", { class: "num" }, r.weight),
      cell("Keys decided by", {}, r.undecided ? el("span", { class: "no" }, "no region") : r.decided_by || el("span", { class: "empty" }, "not known yet")))];
  }));
}

function nodeRow(m, s) {
  const o = m.own;
  const none = () => el("span", { class: "empty" }, "–");
  const state = [m.state, sub(m.voter ? "voter" : "not a voter")];
  if (!m.alive) state.push(sub(m.silent === undefined ? "not heard from" : `silent for ${duration(Math.round(m.silent))}`));
  const quorum = !o ? [el("span", { class: "empty" }, "does not respond")]
    : o.may_decide ? [el("span", { class: "yes" }, "yes")] : [el("span", { class: "no" }, "no"), sub(o.reason || "")];
  const hands = [];
  if (o) {
    const h = o.partition_counts;
    if (h.handing_over) hands.push(`${h.handing_over} being handed over`);
    if (h.taking_over) hands.push(`${h.taking_over} being taken over`);
    if (h.unprotected) hands.push(`${h.unprotected} without a replica`);
    if (h.below_replicas > h.unprotected) hands.push(`${h.below_replicas} below their number of replicas`);
    if (h.divergent) hands.push(`${h.divergent} to be merged`);
  }
  const memory = o?.max_bytes ? [`${o.keys.toLocaleString("en")}`, meter(o.bytes / o.max_bytes, `${percent(o.bytes / o.max_bytes)} of the memory for counters`), sub(`${bytes(o.bytes)} of ${bytes(o.max_bytes)}`)] : [none()];
  return el("tr", { class: o && m.alive ? "" : "gone" },
    el("th", { scope: "row" }, m.name, m.name === s.self ? sub("this page's node") : null, m.address ? sub(el("span", { class: "mono" }, m.address)) : null, m.zone ? sub("zone " + m.zone) : null),
    cell("State", {}, ...state),
    cell("Quorum", {}, ...quorum),
    cell("Uptime", {}, o ? duration(o.uptime) : none()),
    cell("Keys and memory", {}, ...memory),
    cell("Partitions owned", {}, m.state === "missing" ? none() : `${m.owned.toLocaleString("en")} of ${m.partitions.toLocaleString("en")}`, o ? sub(`replicas of ${o.partition_counts.replicas.toLocaleString("en")}`) : null),
    cell("Handoffs", {}, hands.length ? hands.join(", ") : o ? el("span", { class: "empty" }, "none") : none()),
    cell("Checks/s", { class: "num" }, typeof o?.checks === "number" ? rate(o.checks) : "–"),
    cell("Version", {}, m.version || "–"));
}

// ---- rules ----

const ruleView = { domain: "", sort: "checks", up: false };

// columns of the table of rules: what each is sorted by, and its title.
const columns = [
  ["name", "Rule", (r) => r.name], ["limit", "Limit", (r) => (r.rule?.rates.length ? Math.min(...r.rule.rates.map((l) => l.count / l.period)) : Infinity)], ["checks", "Last five minutes", (r) => r.checks],
  ["use", "Utilization", (r) => r.use ?? -1, "Checks of the rule's busiest key in the last minute, of what its limits admit in that time"],
  ...kinds.map((k) => [k, k[0].toUpperCase() + k.slice(1), (r) => r[k]]),
];

function drawRuleHead() {
  $("rule-head").replaceChildren(...columns.map(([key, title, , help]) => {
    const sorted = ruleView.sort === key;
    const button = el("button", { type: "button", class: "sort", title: help || false, onclick: () => sortBy(key) }, title, el("span", { "aria-hidden": "true" }, sorted ? (ruleView.up ? " ↑" : " ↓") : ""));
    return el("th", { scope: "col", class: kinds.includes(key) ? "num" : false, "aria-sort": sorted ? (ruleView.up ? "ascending" : "descending") : false }, button);
  }));
}

function sortBy(key) {
  ruleView.up = ruleView.sort === key ? !ruleView.up : key === "name";
  ruleView.sort = key;
  drawRuleHead();
  [...$("rule-head").querySelectorAll("button")][columns.findIndex(([k]) => k === key)].focus();
  drawRules();
}

// selectDomain shows the rules of a domain, or of all if it is "".
export function selectDomain(domain) {
  ruleView.domain = domain;
  $("rule-domain").value = domain;
  $("tree").replaceChildren(...(known.tree?.domains || []).filter((d) => !domain || d === domain).map((d) => treeOf(d, known.tree.rules.filter((r) => r.domain === d))));
  if (known.state) drawRules();
}

// share returns the part of its rule's limits that the checks of a key in the time covered took, undefined if that is not known: of
// limits with longer periods, the counter may have more.
function share(k) {
  const covers = known.top.covers;
  const of = (ruleOf(k.domain, k.rule)?.rates || []).filter((l) => l.period <= 60 && l.count > 0).map((l) => (k.per_second * covers) / (l.count * Math.max(1, covers / l.period)));
  return of.length ? Math.max(...of) : undefined;
}

// busiest is the largest share of the keys of a rule.
function busiest(r) {
  const of = (known.top?.frequent || []).filter((k) => k.domain === r.domain && k.rule === r.name).map(share).filter((x) => x !== undefined);
  return of.length ? Math.max(...of) : undefined;
}

function drawRules() {
  const s = known.state;
  if ($("rule-rows").closest("section").hidden) return;
  const wanted = $("rule-filter").value.trim().toLowerCase();
  const matching = s.by_rule.filter((r) => (!ruleView.domain || r.domain === ruleView.domain) && (r.domain + " " + r.name).toLowerCase().includes(wanted)).map((r) => {
    const rule = ruleOf(r.domain, r.name);
    const series = kinds.map((kind) => ({ kind, name: kind, values: history((slot) => slot.byRule.get(ruleKey(r))?.[kind] || 0) }));
    const checks = series.reduce((n, one) => n + one.values.reduce((a, b) => a + b, 0), 0);
    return { ...r, rule, series, checks, use: busiest(r) };
  });
  const idle = matching.filter((r) => !r.checks && !kinds.some((k) => r[k]));
  $("idle-text").textContent = idle.length ? `Show ${many(idle.length, "idle rule")}` : "Show idle rules";
  const shown = $("rule-idle").checked ? matching : matching.filter((r) => !idle.includes(r));
  const value = columns.find(([key]) => key === ruleView.sort)[2];
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  shown.sort((a, b) => (ruleView.up ? 1 : -1) * compare(value(a), value(b)) || compare(ruleKey(a), ruleKey(b)));
  const most = 100;
  put($("rule-rows"), shown.slice(0, most).map((r) => [ruleKey(r), JSON.stringify([r, s.total]), () => ruleRow(r, s.total)]));
  const left = shown.length - most;
  const text = !s.by_rule.length ? "This cluster has no rules: only checks that bring their own limits are limited." : !matching.length ? "No rule matches the filter."
    : !shown.length ? `No checks in the last five minutes; ${many(idle.length, "idle rule")} hidden.` : left > 0 ? `${many(left, "more rule")}: narrow them down above.` : "";
  $("rule-none").textContent = text;
  $("rule-none").hidden = !text;
}

function ruleRow(r, total) {
  const cell = (label, n) => el("td", { class: "num", "data-label": label }, el("span", {}, total ? rate(n) : "–"));
  const lines = used(r.series);
  const line = r.checks ? spark(lines, `${r.name}, checks per second, ${inWords(lines)}`) : el("span", { class: "empty" }, "no checks");
  return el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "mono" }, r.name), r.name === r.domain || r.name.startsWith(r.domain + "/") ? null : el("span", { class: "sub" }, "in " + r.domain), ...(r.rule?.notes || []).map(tag)),
    el("td", { "data-label": "Limit" }, el("span", {}, ...(r.rule?.limits || ["–"]).map((l) => el("span", { class: "limit" }, l)))),
    el("td", { "data-label": "Last five minutes" }, line),
    el("td", { "data-label": "Utilization" }, r.use === undefined ? el("span", { class: "empty" }, "–") : el("span", {}, percent(r.use), meter(r.use, `${percent(r.use)} of the limit`))),
    ...kinds.map((k) => cell(k[0].toUpperCase() + k.slice(1), r[k])));
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
  const draw = (n) => el("li", {}, el("code", {}, n.name), n.redact ? tag("redacted") : null, ...(n.rule ? ruleFacts(n.rule) : []),
    n.children.size ? el("ul", {}, ...[...n.children.values()].map(draw)) : null);
  return el("ul", { class: "tree" }, el("li", {}, el("strong", {}, domain), el("ul", {}, ...[...top.children.values()].map(draw))));
}

function ruleFacts(r) {
  return [el("span", { class: "sub" }, r.limits.join(" and "), ` (${r.name}, ${r.file}:${r.line})`), ...r.notes.map(tag)];
}

// ---- keys ----

export function onTop(t) {
  known.top = t;
  $("keys-lead").textContent = t.off ? "This node does not count top keys: start it with --top-keys=local or on."
    : `Over the last ${duration(Math.round(t.covers))}.` + (t.missing.length ? ` No response from ${list(t.missing)}.` : "");
  for (const [id, keys] of [["limited-rows", t.limited], ["frequent-rows", t.frequent]]) {
    const rows = keys.map((k) => {
      const text = spellAll(k.descriptor) + (k.cut ? " …" : "");
      const part = id === "frequent-rows" && share(k);
      return [k.domain + "\n" + text, JSON.stringify([k, part]), () => keyRow(k, text, part === undefined ? "–" : part && percent(part))];
    });
    if (!rows.length) rows.push(["", "", () => el("tr", {}, el("td", { colspan: 3, class: "empty" }, t.off ? "–" : "none"))]);
    put($(id), rows);
  }
}

function keyRow(k, text, part) {
  const whole = !k.cut && !k.descriptor.some((e) => e.value.startsWith("redacted:"));
  const name = whole ? el("a", { class: "mono", href: linkTo(k.domain, spellAll(k.descriptor)), title: "Inspect this key" }, text) : el("span", { class: "mono" }, text);
  return el("tr", {}, el("th", { scope: "row" }, name, el("span", { class: "sub" }, k.domain)), el("td", { class: "num" }, rate(k.per_second)), part ? el("td", { class: "num" }, part) : null);
}

$("rule-filter").addEventListener("input", () => known.state && drawRules());
$("rule-idle").addEventListener("change", () => known.state && drawRules());
$("rule-domain").addEventListener("change", (e) => (location.hash = "#/rules" + (e.target.value && "/" + encodeURIComponent(e.target.value))));
drawRuleHead();
