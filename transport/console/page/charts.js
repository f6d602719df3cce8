// Lines over time, as SVG. Each has a dash of its own, so that colours are not needed to tell them apart.

const svgNS = "http://www.w3.org/2000/svg";

function svg(name, attributes, ...children) {
  const e = document.createElementNS(svgNS, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// scale returns a round step, and the multiple of it that is the top of an axis with values up to most: 2 to 5 steps.
export function scale(most) {
  if (!(most > 0)) return [1, 1];
  const unit = 10 ** Math.floor(Math.log10(most / 5));
  const step = [1, 2, 5, 10].map((f) => f * unit).find((s) => s >= (most / 5) * (1 - 1e-9));
  return [step, step * Math.ceil(most / step - 1e-9)];
}

// path draws values from left to right, with a gap where one is null. A value between two gaps is a dot.
function path(values, x, y) {
  return values.map((v, i) => v === null ? "" : `${(i ? values[i - 1] : null) === null ? "M" : "L"}${x(i).toFixed(1)} ${y(v).toFixed(1)}` +
    ((values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? "h.1" : "")).join("");
}

// spark returns the small lines of a rule. series are {kind, values}.
export function spark(series, label) {
  const width = 176, height = 32;
  const most = Math.max(1e-9, ...series.flatMap((s) => s.values));
  const n = series[0].values.length;
  return svg("svg", { class: "plot spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    ...series.map((s) => svg("path", { class: "p" + s.kind[0], d: path(s.values, (i) => ((i + 0.5) / n) * width, (v) => height - 1 - (v / most) * (height - 2)) })));
}

const clock = (t, seconds) => new Date(t * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined });

// Chart is lines in box, which the pointer can read. figure spells a value.
export class Chart {
  constructor(box, figure) {
    this.box = box;
    this.figure = figure;
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.note = document.createElement("p");
    this.note.className = "small note";
    box.after(this.note);
    box.addEventListener("pointermove", (e) => this.read(e.clientX - box.getBoundingClientRect().left));
    box.addEventListener("pointerdown", (e) => this.read(e.clientX - box.getBoundingClientRect().left));
    box.addEventListener("pointerleave", () => this.read(null));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  // show draws data: {slot, until, nodes, members, series: [{kind, name, values}], label}. In slots with fewer nodes than members the
  // ground is hatched; in those without any there is a gap.
  show(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    const d = this.data;
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!d || !width) return;
    const left = 52, bottom = 20, top = 8;
    const n = d.nodes.length;
    const begin = d.until - n * d.slot;
    const [step, most] = scale(Math.max(0, ...d.series.flatMap((s) => s.values)));
    this.x = (i) => left + ((i + 0.5) / n) * (width - left);
    const y = (v) => height - bottom - (v / most) * (height - bottom - top);
    const at = (t) => left + ((t - begin) / (d.until - begin)) * (width - left);
    const e = svg("svg", { class: "plot", width, height, role: "img", "aria-label": d.label });
    e.append(svg("defs", {}, svg("pattern", { id: this.box.id + "-hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { class: "hatch", width: 3, height: 8 }))));
    for (let v = 0; v <= most * 1.001; v += step) {
      e.append(svg("path", { class: "grid", d: `M${left} ${y(v)}H${width}` }), svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, this.figure(v)));
    }
    for (let t = Math.ceil(begin / 60) * 60; t < d.until; t += 60) {
      const middle = at(t) > left + 20 && at(t) < width - 18;
      e.append(svg("path", { class: "grid", d: `M${at(t)} ${top}V${height - bottom + 4}` }));
      if (middle) e.append(svg("text", { x: at(t), y: height - 4, "text-anchor": "middle" }, clock(t)));
    }
    let partial = null;
    d.nodes.forEach((nodes, i) => {
      if (!nodes || nodes >= d.members[i]) return;
      partial = i;
      e.append(svg("rect", { class: "partial", x: left + (i / n) * (width - left), y: top, width: (width - left) / n + 0.5, height: height - bottom - top, fill: `url(#${this.box.id}-hatch)` }));
    });
    for (const s of d.series) e.append(svg("path", { class: "p" + s.kind[0], d: path(s.values, this.x, y) }));
    this.line = svg("path", { class: "grid cross", d: "" });
    e.append(this.line);
    this.box.replaceChildren(e, this.tip);
    const notes = d.series.some((s) => s.values.some((v) => v > 0)) ? [] : ["Nothing to show: no checks in the last five minutes."];
    if (partial !== null) notes.push(`Hatched: only some of the nodes have reported, ${d.nodes[partial]} of ${d.members[partial]} at ${clock(begin + partial * d.slot, true)}.`);
    if (d.nodes.some((k) => !k)) notes.push("Gaps: none of the nodes that respond was running then.");
    this.note.textContent = notes.join(" ");
    this.read(this.pointer ?? null);
  }

  // read shows the values of the slot at x.
  read(x) {
    this.pointer = x;
    const d = this.data;
    this.tip.hidden = x === null || !d || !this.line;
    this.line?.setAttribute("d", "");
    if (this.tip.hidden) return;
    const n = d.nodes.length;
    const i = Math.max(0, Math.min(n - 1, Math.round((x - this.x(0)) / (this.x(1) - this.x(0)))));
    const begin = d.until - (n - i) * d.slot;
    const rows = d.series.map((s) => [s.name, s.values[i] === null ? "–" : this.figure(s.values[i])]);
    if (d.nodes[i] < d.members[i]) rows.push(["nodes", `${d.nodes[i]} of ${d.members[i]}`]);
    this.tip.dataset.values = JSON.stringify(Object.fromEntries(d.series.map((s) => [s.name, s.values[i]])));
    this.tip.dataset.slot = begin;
    this.tip.dataset.nodes = d.nodes[i];
    const head = document.createElement("strong");
    head.textContent = clock(begin, true) + " to " + clock(begin + d.slot, true).slice(-5);
    const cells = rows.flatMap(([name, value]) => [name, value].map((text) => {
      const cell = document.createElement("span");
      cell.textContent = text;
      return cell;
    }));
    this.tip.replaceChildren(head, ...(d.nodes[i] ? cells : [document.createTextNode("not known")]));
    this.line.setAttribute("d", `M${this.x(i)} 8V${this.box.clientHeight - 20}`);
    const right = this.x(i) > this.box.clientWidth / 2;
    this.tip.style.left = right ? "" : this.x(i) + 10 + "px";
    this.tip.style.right = right ? this.box.clientWidth - this.x(i) + 10 + "px" : "";
  }
}
