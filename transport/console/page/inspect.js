import * as client from "/console/client.js";
import { $, duration, el, list, many, meter, notice, say, spell, spellAll, tag } from "/console/dom.js";
import { rejected } from "/console/session.js";

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
let asked = 0; // inspections; only the result of the last is shown

// linkTo is the address of the view for a key.
export const linkTo = (domain, descriptor) => `#/inspect/${encodeURIComponent(domain)}/${encodeURIComponent(descriptor)}`;

// openKey shows the key of an address, unless it is shown already.
export function openKey(domain, descriptor) {
  if (domain === undefined || (inspected && domain === inspected.domain && descriptor === spellAll(inspected.descriptor))) return;
  $("i-domain").value = domain;
  $("i-descriptor").value = descriptor || "";
  if (descriptor) inspect(true);
}

async function inspect(focus) {
  const mine = ++asked;
  try {
    inspected = { domain: $("i-domain").value.trim(), descriptor: readDescriptor($("i-descriptor").value) };
    const x = await client.inspect(inspected);
    if (mine !== asked) return;
    const typed = spellAll(x.descriptor);
    // Values that rules redact do not get into the browser's history.
    const at = typed === spellAll(x.shown) ? linkTo(x.domain, typed) : "#/inspect";
    if (location.hash.startsWith("#/inspect") && location.hash !== at) history.replaceState(null, "", at);
    drawInspection(x);
  } catch (e) {
    if (mine !== asked) return;
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
  if (!x.known) fact("Domains", list([...$("domains").options].map((o) => o.value)));
  const parts = [el("h3", {}, x.rule ? "Rule " : "No rule applies", x.rule ? el("code", {}, x.rule.name) : null)];
  if (x.rule) {
    if (x.rule.notes.length) fact("Options", ...x.rule.notes.map(tag));
    fact("Limits", x.rule.limits.join(" and "));
  }
  const counts = x.rule && (x.owner || x.replicas.length || x.missing.length);
  if (counts) {
    fact("Owner", x.owner || "no node with quorum that owns it has responded");
    fact("Replicas", list(x.replicas) + (x.initial_sync.length ? `; initial sync in progress: ${list(x.initial_sync)}` : ""));
    if (x.grants || x.leases.length) fact("Granted", `${many(x.granted, "unit")} in ${many(x.grants, "open grant")}` + (x.leases.length ? "; left: " + x.leases.map((l) => `${l.node} ${l.left}`).join(", ") : ""));
    if (x.denying.length) fact("Denial cached by", list(x.denying));
    if (x.missing.length) fact("No response from", list(x.missing));
    fact("Partition", `${x.partition}, generation ${x.generation}`);
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
  if (x.held.length) {
    const oldest = Math.max(...x.held.map((h) => h.since));
    const head = ["Use", "Caller", "Units", "Since", "Expires in"];
    parts.push(el("h4", {}, "Held now"), el("table", { class: "cards", id: "held" },
      el("caption", { class: "hidden" }, "Open reservations, slots and leases"),
      el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { scope: "col", class: i > 1 ? "num" : false }, h)))),
      el("tbody", {}, ...x.held.map(heldRow))));
    if (oldest) parts.push(el("p", { class: "empty" }, `The oldest is from ${duration(oldest)} ago.` + (x.grants > x.held.length ? ` The first ${x.held.length} are shown.` : "")));
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
  return el("tr", {},
    el("th", { scope: "row" }, l.name, el("span", { class: "sub" }, l.text), meter(part, `${Math.round(100 * part)} % spent`)),
    cell("Spent", l.spent.toLocaleString("en")),
    cell("Remaining", unlimited ? "no limit" : l.remaining.toLocaleString("en")),
    cell("Resets in", l.reset_after > 0 ? duration(Math.max(0.1, l.reset_after)) : "–"));
}

function heldRow(h) {
  const cell = (label, text, num) => el("td", { class: num ? "num" : false, "data-label": label }, el("span", {}, text));
  return el("tr", {}, el("th", { scope: "row" }, h.use), cell("Caller", h.caller || "–"), cell("Units", h.units.toLocaleString("en"), true),
    cell("Since", h.since ? duration(h.since) : "–", true), cell("Expires in", duration(Math.max(0.1, h.expires_after)), true));
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

$("inspect-form").addEventListener("submit", (e) => {
  e.preventDefault();
  inspect(true);
});
$("reset-form").addEventListener("submit", (e) => {
  e.preventDefault();
  reset();
});
$("reset-cancel").addEventListener("click", () => $("reset-dialog").close());
