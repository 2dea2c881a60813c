// One dot for each head of each layer, as in the paper's figure 7 (right): how far it looks, or how evenly.

import { drawn, roundStep } from "./common.js";
import { short } from "./explorer_words.js";

const WIDTH = 360, HEIGHT = 220, LEFT = 38, RIGHT = 8, TOP = 8, BOTTOM = 30;

/** 4 or 5 round numbers from 0 to at least `most`. */
function ticks(most) {
  const step = roundStep(Math.max(most, 1e-9) / 4);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => index * step);
}

export class Scatter {
  /** `choose(layer, head)`: head numbers are the model's, also where only the mean of heads can be shown. */
  constructor(parent, told, choose) {
    Object.assign(this, { parent, told, choose, layer: 0, head: 0, values: [] });
    parent.addEventListener("keydown", (event) => this.key(event));
    parent.addEventListener("click", (event) => this.click(event));
  }

  /** `values` are [layer][head]. */
  build(values, unit) {
    this.values = values;
    this.unit = unit;
    const most = Math.max(...values.map((layer) => Math.max(...layer)));
    const marks = ticks(most), top = marks.at(-1) || 1, layers = values.length;
    this.x = (layer) => LEFT + ((layer + 0.5) / layers) * (WIDTH - LEFT - RIGHT);
    this.y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const chart = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
    const wide = (WIDTH - LEFT - RIGHT) / layers;
    this.band = drawn("rect", { class: "band", y: TOP, width: wide, height: HEIGHT - TOP - BOTTOM });
    chart.append(this.band);
    for (const mark of marks) {
      chart.append(drawn("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: this.y(mark), y2: this.y(mark) }));
      chart.append(drawn("text", { x: LEFT - 5, y: this.y(mark) + 4, "text-anchor": "end" }, short(mark)));
    }
    const every = Math.max(1, Math.ceil(layers / 12));
    for (let layer = 0; layer < layers; layer += every)
      chart.append(drawn("text", { x: this.x(layer), y: HEIGHT - BOTTOM + 13, "text-anchor": "middle" }, layer));
    chart.append(drawn("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "layer"));
    this.dots = values.map((heads, layer) => heads.map((value, head) => {
      const dot = drawn("circle", { class: "dot", cx: this.x(layer), cy: this.y(value), r: 4 });
      dot.append(drawn("title", {}, `layer ${layer} head ${head}: ${short(value)} ${unit}`));
      chart.append(dot);
      return dot;
    }));
    this.ring = drawn("circle", { class: "ring", r: 7 });
    chart.append(this.ring);
    this.parent.replaceChildren(chart);
    this.chart = chart;
    this.picked = null;
  }

  /** Mark the layer, and the head where one is chosen. */
  select(layer, head) {
    [this.layer, this.head] = [layer, head ?? this.head];
    if (!this.dots) return;
    this.band.setAttribute("x", this.x(layer) - (WIDTH - LEFT - RIGHT) / this.values.length / 2);
    this.picked?.classList.remove("picked");
    this.picked = head === null ? null : this.dots[layer]?.[head];
    this.picked?.classList.add("picked");
    this.ring.setAttribute("display", this.picked ? "inline" : "none");
    if (this.picked) {
      for (const name of ["cx", "cy"]) this.ring.setAttribute(name, this.picked.getAttribute(name));
      this.chart.insertBefore(this.picked, this.ring); // above its neighbours
    }
    const heads = this.values[layer], mean = heads.reduce((sum, value) => sum + value, 0) / heads.length;
    const own = this.picked ? `head ${head} ${short(heads[head])} ${this.unit}, ` : "";
    this.told.textContent = `Layer ${layer}: ${own}mean ${short(mean)} ${this.unit}.`;
  }

  /** The nearest dot: small ones are hard to hit, above all with a finger. */
  click(event) {
    const box = this.chart.getBoundingClientRect(), scale = WIDTH / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = null, nearest = 24 ** 2;
    this.values.forEach((heads, layer) => heads.forEach((value, head) => {
      const away = (this.x(layer) - x) ** 2 + (this.y(value) - y) ** 2;
      if (away < nearest) [best, nearest] = [[layer, head], away];
    }));
    if (best) this.choose(...best);
  }

  /** Up and down go through a layer's heads as they lie in the chart, by value. */
  key(event) {
    if (!this.values.length || event.ctrlKey || event.altKey || event.metaKey) return;
    let { layer, head } = this;
    const order = [...this.values[layer].keys()].sort((a, b) => this.values[layer][a] - this.values[layer][b]);
    const rank = Math.max(0, order.indexOf(head)), last = this.values.length - 1;
    if (event.key === "ArrowLeft") layer = Math.max(0, layer - 1);
    else if (event.key === "ArrowRight") layer = Math.min(last, layer + 1);
    else if (event.key === "ArrowUp") head = order[Math.min(order.length - 1, rank + 1)];
    else if (event.key === "ArrowDown") head = order[Math.max(0, rank - 1)];
    else if (event.key === "Home") layer = 0;
    else if (event.key === "End") layer = last;
    else return;
    event.preventDefault();
    this.choose(layer, head);
  }
}
