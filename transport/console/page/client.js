// What the page asks of its node. Who asks, the node knows by a cookie that no script can read.

// Rejected is an answer that is none. status is that of HTTP.
export class Rejected extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function call(method, path, body, signal, token) {
  const headers = { Accept: "application/json, text/event-stream" };
  if (token) headers.Authorization = "Bearer " + token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, headers, signal, cache: "no-store", credentials: "same-origin", redirect: "error",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok) return answer;
  let text = answer.statusText || "status " + answer.status;
  try {
    text = (await answer.json()).detail || text;
  } catch {
    // It is not from sluice.
  }
  throw new Rejected(answer.status, text);
}

// login begins a session by the code of an address that `sluice console` printed, or by a caller's token.
export const login = (code, token) => call("POST", "/console/login", code ? { code } : {}, undefined, token);
export const logout = () => call("POST", "/console/logout", {});
// options tells how to sign in to this node.
export const options = async () => (await call("GET", "/console/login-options")).json();
export const rules = async () => (await call("GET", "/console/api/rules")).json();
export const inspect = async (q) => (await call("POST", "/console/api/inspect", q)).json();
export const reset = async (q) => (await call("POST", "/console/api/inspect/reset", q)).json();

// watch calls on[event](data) for each event, until there are no more or signal ends it. It throws what a call throws.
export async function watch(on, signal) {
  const answer = await call("GET", "/console/api/watch", undefined, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const text of events) {
      const fields = Object.fromEntries(text.split("\n").map((l) => [l.slice(0, l.indexOf(":")), l.slice(l.indexOf(":") + 2)]));
      on[fields.event]?.(JSON.parse(fields.data));
    }
  }
}
