// Signing in. A session is a cookie that no script can read; the node checks it with each call.

import * as client from "/console/client.js";
import { $, el } from "/console/dom.js";

// session has what the page knows about it: runbook is about a node that does not respond, allowed is "none", "some" (of the domains) or "all". changed is called when it changes.
export const session = { allowed: "all", runbook: "", changed: () => {}, watch: () => {} };

let retry = null;

// rejected asks to sign in if that is what was missing, and goes on with what failed when there is a session.
export function rejected(e, again) {
  if (e.status !== 401) return false;
  retry = again || retry;
  signedOut("");
  return true;
}

// signedOut shows the ways to sign in.
export async function signedOut(why) {
  session.allowed = "none";
  session.changed();
  $("signin-why").textContent = why;
  $("signin-why").hidden = !why;
  await drawWays();
  if (!$("token-form").hidden && !document.hidden) $("token").focus();
}

// begin signs in and goes on with what failed before.
export async function begin(code, token) {
  try {
    await client.login(code, token);
  } catch (e) {
    signedOut((code ? "This login URL is not valid: " : "The node rejected this token: ") + e.message + ".");
    return;
  }
  session.allowed = "all";
  if (location.hash === "#/signin") location.hash = "#/overview";
  session.changed();
  drawWays();
  const again = retry;
  retry = null;
  session.watch();
  again?.();
}

const loopback = (host) => /^(localhost|127\.[\d.]+|\[?::1\]?)$/.test(host);

// drawWays shows what helps to sign in with this node, from where the page was opened.
export async function drawWays() {
  let o;
  try {
    o = await client.options();
  } catch {
    return; // the node does not answer, which watching says
  }
  session.runbook = o.runbook;
  $("sign").hidden = $("token-form").hidden = !o.access_control;
  $("sign-out").hidden = session.allowed === "none";
  $("sign").textContent = session.allowed === "none" ? "Sign in" : "Account";
  const local = new URL(o.url);
  const step = (text, ...commands) => el("li", {}, text, ...commands.map((c) => el("pre", {}, el("code", {}, c))));
  const steps = [];
  let head = "As the operator of the node";
  const here = loopback(location.hostname);
  if (o.pod) {
    if (!here) steps.push(step("Forward a port of this machine to the pod:", `kubectl port-forward ${o.pod} ${local.port}`));
    steps.push(step("Make a login URL, and open it here:", `kubectl exec ${o.pod} -- /sluice ${o.command.replace(/^sluice /, "")}`));
  } else if (!here && loopback(local.hostname)) {
    head += ", from this machine";
    steps.push(step("Forward a port of this machine to the node's:", `ssh -L ${local.port}:${local.host} ${location.hostname}`));
    steps.push(step("In that shell, as the user that the node runs as, make a login URL, and open it here:", o.command));
  } else {
    steps.push(step("On the node's machine, as the user that the node runs as, make a login URL, and open it here:", o.command));
  }
  $("ways").replaceChildren(el("h3", {}, head), el(steps.length > 1 ? "ol" : "ul", { class: "ways" }, ...steps), el("p", { class: "small" }, "The URL is valid for one login within a minute."),
    o.access_control ? "" : el("p", { class: "small" }, "This node has no access control list, so there are no tokens to sign in with. Started with ", el("code", {}, "--callers"), ", it accepts tokens from any machine."));
}

$("sign-out").addEventListener("click", async () => {
  await client.logout().catch(() => {}); // the node forgets the session by itself
  session.watch();
});
$("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const token = $("token").value.trim();
  $("token").value = "";
  begin("", token);
});
