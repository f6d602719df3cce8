// Elements of the page, and figures in words.

export const $ = (id) => document.getElementById(id);

// el makes an element: el("td", {class: "num", "data-label": "Denied"}, "3").
export function el(name, attributes, ...children) {
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
export function put(body, rows) {
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

export const many = (n, one, more = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;
export const list = (names) => names.join(", ") || "none";

export function rate(n) {
  if (n === 0) return "0";
  if (n < 0.1) return "<0.1";
  return n.toLocaleString("en", { maximumFractionDigits: n < 100 ? 1 : 0 });
}

export function duration(s) {
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

export const spell = (e) => `${e.key}=` + (/[\s"]/.test(e.value) ? JSON.stringify(e.value) : e.value);
export const spellAll = (descriptor) => descriptor.map(spell).join(" ");

const units = ["B", "KiB", "MiB", "GiB", "TiB"];
export function bytes(n) {
  const i = n < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  return +(n / 1024 ** i).toPrecision(3) + " " + units[i];
}

export const tag = (text) => el("span", { class: "tag" }, text);
export const percent = (part) => (part >= 10 ? rate(Math.round(part)) + " ×" : (part > 0 && part < 0.01 ? "<1" : Math.round(100 * part)) + " %");

// meter is a bar that is full at 1.
export function meter(part, label) {
  const bar = el("i");
  bar.style.width = 100 * Math.min(1, part) + "%";
  return el("span", { class: "meter" + (part >= 1 ? " full" : ""), role: "img", "aria-label": label }, bar);
}

// say tells those who cannot see it.
export function say(text) {
  if ($("say").textContent !== text) $("say").textContent = text;
}

export function notice(text) {
  $("notice").hidden = !text;
  if ($("notice").textContent !== text) $("notice").textContent = text;
}
