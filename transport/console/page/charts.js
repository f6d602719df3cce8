// Lines over time, as SVG. Each has a dash of its own, so that nobody needs colours to tell them apart.

const svgNS = "http://www.w3.org/2000/svg";
const width = 300;
const height = 100;

export const kinds = ["allowed", "denied", "shadowed", "failed"];

function svg(name, attributes, ...children) {
  const e = document.createElementNS(svgNS, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// ceiling is a round number that is not below n.
export function ceiling(n) {
  if (n <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 2.5, 5, 10].map((f) => f * unit).find((c) => c >= n);
}

function path(values, most) {
  const step = width / Math.max(1, values.length - 1);
  return values.map((v, i) => (i ? "L" : "M") + (i * step).toFixed(1) + " " + (height - (v / most) * height).toFixed(1)).join("");
}

// plot returns the lines of a series ({allowed: […], …}) and what is at their top. label says them in words.
export function plot(series, label, grid) {
  const shown = kinds.filter((k) => k === "allowed" || series[k].some((v) => v > 0));
  const most = ceiling(Math.max(...shown.flatMap((k) => series[k])));
  const e = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  if (grid) for (const y of [0, 50, 100]) e.append(svg("path", { class: "grid", d: `M0 ${y}H${width}` }));
  const allowed = path(series.allowed, most);
  e.append(svg("path", { class: "fill", d: `${allowed}L${width} ${height}L0 ${height}Z` }));
  for (const k of shown) e.append(svg("path", { class: "p" + k[0], d: path(series[k], most) }));
  return [e, most];
}
