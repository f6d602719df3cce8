// The page: its views by URL, the banner, and the connection to the node.

import * as client from "/console/client.js";
import { $, duration, el, notice, say } from "/console/dom.js";
import { openKey } from "/console/inspect.js";
import { begin, drawWays, rejected, session } from "/console/session.js";
import * as views from "/console/views.js";

// ---- views ----

const titles = { overview: "Overview", nodes: "Nodes", rules: "Rules", keys: "Keys", inspect: "Inspect", signin: "Sign in" };

// route shows the view of the URL, or the nearest that the session allows.
function route() {
  let [view, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  try {
    rest = rest.map(decodeURIComponent);
  } catch {
    rest = [];
  }
  if (!titles[view]) view = "overview";
  if (session.allowed === "none") view = "signin";
  if (session.allowed === "some" && view !== "signin") view = "inspect";
  for (const e of document.querySelectorAll("[data-view]")) e.hidden = e.dataset.view !== view;
  for (const a of document.querySelectorAll("nav a")) {
    a.hidden = session.allowed === "none" || (session.allowed === "some" && a.hash !== "#/inspect");
    if (a.hash === "#/" + view) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  const self = views.state()?.self;
  document.title = titles[view] + (self ? " – " + self : "") + " – sluice console";
  if (view === "rules") views.selectDomain(rest[0] || "");
  if (view === "inspect") openKey(...rest);
}

// ---- banner ----

// The health that nodes report, by its level on the page.
const levels = { healthy: ["good", "Healthy"], degraded: ["warn", "Degraded"], stale_rules: ["warn", "Stale rules"], no_quorum: ["bad", "No quorum"] };

// link is "wait", "live", "lost" or "paused". heard is when the last state came, in ms.
const connection = { link: "wait", heard: 0 };
const staleAfter = 3500; // ms; states come each second

function banner(level, status, causes) {
  $("banner").dataset.level = level;
  if ($("status").textContent !== status) $("status").textContent = status;
  const content = JSON.stringify(causes);
  if ($("causes").dataset.content === content) return;
  $("causes").dataset.content = content;
  const linked = (c, i) => c.doc && causes.findIndex((other) => other.doc === c.doc) === i; // each page once
  $("causes").replaceChildren(...causes.map((c, i) => el("li", { "data-severity": c.severity }, c.severity === "notice" ? "Notice: " : null, c.text, linked(c, i) ? el("a", { href: c.doc, rel: "noreferrer" }, "What to do") : null)));
}

// drawBanner says how the cluster is, and whether that is still so.
function drawBanner() {
  const s = views.state();
  const age = Date.now() - connection.heard;
  const stale = session.allowed === "all" && connection.heard > 0 && connection.link !== "paused" && age > staleAfter;
  $("main").classList.toggle("stale", stale || connection.link === "paused");
  $("summary").hidden = !s || stale || session.allowed !== "all";
  $("age").textContent = session.allowed !== "all" || !connection.heard ? "" : connection.link === "paused" ? "paused" : stale ? `last update ${duration(Math.round(age / 1000))} ago` : "live";
  const self = s?.self || "the node";
  if (session.allowed === "none") banner("wait", "Not signed in", []);
  else if (session.allowed === "some") banner("wait", "Signed in for some domains", [{ text: "Inspect works for them. The other views need a caller with the verb read in all domains (\"*\")." }]);
  else if (stale && connection.link === "lost") banner("bad", `No connection to ${self}`, [{ text: "The figures below are old. The node has stopped, or the network between it and this browser has failed. Trying again.", doc: session.runbook }]);
  else if (stale) banner("bad", `${self} does not respond`, [{ text: "The figures below are old. The connection is open, but the node sends nothing: its process may be stopped or overloaded.", doc: session.runbook }]);
  else if (connection.link === "lost" && !connection.heard) banner("bad", "No connection to the node", [{ text: "Trying again.", doc: session.runbook }]);
  else if (!s) banner("wait", "Connecting…", []);
  else {
    const [level, status] = levels[s.health.status] || ["warn", s.health.status];
    $("summary").textContent = s.health.status === "healthy" ? s.health.summary.replace(/^[^:]*: /, "") : "";
    banner(level, status, s.health.causes);
  }
}

// ---- watching ----

let watching = null;
let failures = 0;
let timer = 0;

function onState(s) {
  const before = views.state();
  if (connection.link === "lost") say("Connected again.");
  if (connection.link !== "live") notice("");
  connection.link = "live";
  connection.heard = Date.now();
  failures = 0;
  if (!views.onState(s)) views.loadRules();
  if (!before) route(); // for the title
  else announce(before, s);
  drawBanner();
}

// announce says what has changed among the nodes.
function announce(before, s) {
  const was = new Map(before.members.map((m) => [m.name, m]));
  const news = [];
  for (const m of s.members) {
    const old = was.get(m.name);
    was.delete(m.name);
    if (!old) news.push(`${m.name} has appeared`);
    else if (old.own && !m.own) news.push(`${m.name} does not respond`);
    else if (!old.own && m.own) news.push(`${m.name} responds again`);
    else if (old.own && m.own && old.own.may_decide !== m.own.may_decide) news.push(`${m.name} has ${m.own.may_decide ? "quorum again" : "lost quorum"}`);
  }
  for (const name of was.keys()) news.push(`${name} is gone`);
  for (const r of s.regions || []) if ((before.regions || []).some((old) => old.name === r.name && old.state !== r.state)) news.push(`region ${r.name} is ${r.state}`);
  if (news.length) say(news.join("; ") + ".");
}

// watch keeps watching while the page is looked at.
async function watch() {
  clearTimeout(timer);
  watching?.abort();
  const mine = (watching = new AbortController());
  let wait = 0;
  try {
    await client.watch({ history: views.onHistory, state: onState, slot: views.onHistory, top: views.onTop }, mine.signal);
    wait = 1000; // the node has ended it: it stops, or this page was too slow
  } catch (e) {
    if (mine.signal.aborted) return;
    connection.link = "wait";
    if (rejected(e)) return;
    if (e.status === 403) {
      session.allowed = "some";
      session.changed();
      return;
    }
    wait = Math.min(10000, 500 * 2 ** failures++);
    if (e.status) notice(e.message);
  }
  if (mine.signal.aborted) return;
  connection.link = "lost";
  say(`The connection to ${views.state()?.self || "the node"} is lost. Trying again.`);
  drawBanner();
  timer = setTimeout(watch, wait);
}

document.addEventListener("visibilitychange", () => {
  if (session.allowed !== "all") return;
  if (document.hidden) {
    clearTimeout(timer);
    watching?.abort();
    connection.link = "paused";
    drawBanner();
  } else if (connection.link === "paused") {
    connection.link = "wait";
    connection.heard = Date.now();
    watch();
  }
});

session.watch = () => {
  session.allowed = "all";
  connection.link = "wait";
  connection.heard = 0;
  watch();
};
session.changed = () => {
  route();
  drawBanner();
};
window.addEventListener("hashchange", () => {
  route();
  scrollTo(0, 0);
});
document.querySelector(".skip").addEventListener("click", (e) => {
  e.preventDefault();
  $("main").focus();
});
setInterval(drawBanner, 1000);
drawWays();

// A login URL has its code behind the #, which browsers send to nobody. It does not stay in the history.
const code = new URLSearchParams(location.hash.slice(1)).get("login");
if (code) history.replaceState(null, "", location.pathname + "#/overview");
route();
if (code) begin(code);
else watch();
