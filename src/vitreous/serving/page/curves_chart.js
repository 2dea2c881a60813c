// One chart of many runs: axes, curves, and a crosshair that pointer and arrow keys move. It draws in the pixels it has, so that
// words are as large on a phone as on a desk.
import { drawn, make, roundStep } from "./common.js";
import { duration, figure, place, title, whole } from "./curves_words.js";

const LEFT = 58, RIGHT = 14, TOP = 10, BOTTOM = 40, HEIGHT = 270, ROWS = 40;

function ticks(low, high, most) {
  const step = roundStep((high - low) / most), found = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; k += 1) found.push(k * step || 0);  // never -0
  return found;
}

function timeTicks(low, high, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = steps.find((size) => (high - low) / size <= most);
  if (!step || high - low < most) return ticks(low, high, most);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  let inside = [];
  for (const digits of [[1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) {
    if (inside.length >= 4) break;
    inside = [];
    for (let power = first; power <= last; power += 1) inside.push(...digits.map((digit) => Number((digit * 10 ** power).toPrecision(3))));
    inside = inside.filter((tick) => tick >= low && tick <= high);
  }
  if (inside.length < 2) return ticks(low, high, 4);
  return inside.filter((_, k) => k % Math.ceil(inside.length / 7) === 0);
}

// Of many points in one column of pixels, the lowest and the highest: nothing that could be seen is left out.
function columns(xs, ys, width) {
  if (xs.length <= 3 * width) return [xs, ys];
  const size = Math.ceil(xs.length / width), some = [[], []];
  for (let begin = 0; begin < xs.length; begin += size) {
    let low = begin, high = begin;
    for (let k = begin; k < Math.min(xs.length, begin + size); k += 1) {
      if (!Number.isFinite(ys[k])) continue;
      if (!(ys[k] >= ys[low])) low = k;
      if (!(ys[k] <= ys[high])) high = k;
    }
    for (const k of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) { some[0].push(xs[k]); some[1].push(ys[k]); }
  }
  return some;
}

function nearest(xs, wanted) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= wanted) low = middle; else high = middle;
  }
  return wanted - xs[low] <= xs[high] - wanted ? low : high;
}

export class Chart {
  // `moved` is called with the place of the crosshair, or null, so that all charts can show it.
  constructor(key, moved, saved) {
    Object.assign(this, { key, moved, lines: [], along: "step", log: false, at: null, active: false });
    this.svg = drawn("svg", { "aria-hidden": "true", focusable: "false" });
    this.frame = drawn("g");
    this.curves = drawn("g");
    this.marks = drawn("g");
    this.svg.append(this.frame, this.curves, this.marks);
    this.reading = make("div", { class: "reading", hidden: true, "aria-hidden": "true" });
    this.plot = make("div", { class: "plot", role: "slider", tabindex: "0", "aria-orientation": "horizontal" }, this.svg, this.reading);
    const buttons = ["SVG", "PNG", "CSV"].map((kind) => make("button", {
      type: "button", class: "plain", "aria-label": `Download ${title(key)} as ${kind}`, on: { click: () => saved(this, kind) },
    }, kind));
    this.scaled = make("span", { class: "quiet small" });
    this.numbers = make("div", { class: "wide tall", tabindex: "0", role: "region", "aria-label": `${title(key)} as numbers` });
    this.details = make("details", { on: { toggle: () => this.tabulate() } }, make("summary", {}, "As numbers"), this.numbers);
    this.element = make("figure", { class: "card chart", "data-key": key },
      make("figcaption", {}, make("strong", {}, title(key)), this.scaled, make("span", { class: "downloads" }, ...buttons)), this.plot, this.details);
    const read = (event) => this.read(event);
    this.plot.addEventListener("pointermove", read);
    this.plot.addEventListener("pointerdown", read);
    // A finger leaves when it is lifted, and then what it read is still wanted; the next touch elsewhere takes the focus away.
    this.plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && document.activeElement !== this.plot) this.leave(); });
    this.plot.addEventListener("keydown", (event) => this.press(event));
    this.plot.addEventListener("focus", () => { if (this.at === null && this.stops().length && this.plot.matches(":focus-visible")) this.go(this.stops().at(-1)); });
    this.plot.addEventListener("blur", () => this.leave());
    new ResizeObserver(() => { if (Math.abs(this.plot.clientWidth - (this.width || 0)) > 1) this.draw(); }).observe(this.plot);
  }

  // A line: {name, split, colour, xs, ys} as recorded, and where it is noisy `smooth: {xs, ys}`, which is then drawn over it.
  // `end` is where the longest of all curves ends: every chart reaches as far, so that one crosshair suits them all.
  show(lines, along, log, end) {
    Object.assign(this, { lines: lines.filter((line) => line.ys.some(Number.isFinite)), along, log, end });
    this.places = null;
    this.element.hidden = !this.lines.length;
    if (!this.lines.length) this.curves.replaceChildren();
    this.draw();
    if (this.details.open) this.tabulate();
  }

  stops() {
    if (!this.places) this.places = [...new Set(this.lines.flatMap((line) => line.xs.filter((_, k) => Number.isFinite(line.ys[k]))))].sort((a, b) => a - b);
    return this.places;
  }

  scales() {
    const every = this.lines.flatMap((line) => [line, line.smooth].filter(Boolean));
    let low = Infinity, high = -Infinity, positive = true;
    for (const { ys } of every) {
      for (let k = 0; k < ys.length; k += 1) {
        if (!Number.isFinite(ys[k])) continue;
        if (ys[k] <= 0) positive = false;
        low = Math.min(low, ys[k]);
        high = Math.max(high, ys[k]);
      }
    }
    const logarithmic = this.log && positive;
    if (logarithmic) [low, high] = [low / 1.08, high * 1.08];
    else {
      if (low >= 0 && low < 0.5 * high) low = 0;
      const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
      if (low !== 0) low -= room;
      high += room;
      if (/^top\d+$/.test(this.key)) [low, high] = [Math.max(0, low), Math.min(1.002, high)];
    }
    return { first: 0, last: this.end > 0 ? this.end : 1, low, high, logarithmic };
  }

  draw() {
    const width = this.width = this.plot.clientWidth;
    if (!width || !this.lines.length) return;
    const right = width - RIGHT, bottom = HEIGHT - BOTTOM, s = this.scale = this.scales();
    this.across = (x) => LEFT + (right - LEFT) * (x - s.first) / (s.last - s.first);
    this.up = (y) => bottom - (bottom - TOP) * (s.logarithmic ? Math.log(y / s.low) / Math.log(s.high / s.low) : (y - s.low) / (s.high - s.low));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", HEIGHT);
    this.scaled.textContent = s.logarithmic ? "logarithmic" : "";
    this.axes(right, bottom);
    this.curves.replaceChildren(...this.lines.filter((line) => line.smooth).map((line) => this.path(line, line, "faint")),
      ...this.lines.flatMap((line) => [this.path(line.smooth || line, line, line.split === "train" ? "thin" : "bold"), ...this.dots(line)]));
    const stops = this.stops();
    for (const [name, value] of [["valuemin", stops[0]], ["valuemax", stops.at(-1)], ["valuenow", this.at ?? stops.at(-1)]]) this.plot.setAttribute("aria-" + name, value);
    this.plot.setAttribute("aria-label", `${title(this.key)}: arrow keys read it along ${this.along === "seconds" ? "time" : this.along}`);
    this.mark();
  }

  axes(right, bottom) {
    const s = this.scale, parts = [], several = Math.max(2, Math.min(6, Math.floor((right - LEFT) / 80)));
    for (const tick of s.logarithmic ? logTicks(s.low, s.high) : ticks(s.low, s.high, 5)) {
      const y = this.up(tick);
      parts.push(drawn("line", { class: "grid", x1: LEFT, x2: right, y1: y, y2: y }));
      const words = /^top\d+$/.test(this.key) ? Number((100 * tick).toPrecision(6)) + " %" : figure(tick);
      parts.push(drawn("text", { x: LEFT - 7, y: y + 4, "text-anchor": "end" }, words));
    }
    const along = this.along === "seconds" ? timeTicks(s.first, s.last, several) : ticks(s.first, s.last, several);
    for (const tick of along.filter((one) => this.along !== "step" || Number.isInteger(one))) {
      const x = this.across(tick);
      const words = this.along === "seconds" ? (tick ? duration(tick).replace(/ 0 (s|min|h)$/, "") : "0") : this.along === "step" ? whole(tick) : String(Number(tick.toPrecision(4)));
      parts.push(drawn("text", { x, y: bottom + 17, "text-anchor": x + 3.6 * words.length > right + RIGHT ? "end" : "middle" }, words));
    }
    parts.push(drawn("line", { class: "base", x1: LEFT, x2: right, y1: bottom, y2: bottom }));
    parts.push(drawn("text", { x: (LEFT + right) / 2, y: bottom + 34, "text-anchor": "middle" }, this.along === "seconds" ? "time" : this.along));
    this.frame.replaceChildren(...parts);
  }

  path(points, line, kind) {
    const [xs, ys] = columns(points.xs, points.ys, this.width);
    let written = "", pen = false;
    for (let k = 0; k < xs.length; k += 1) {
      if (!Number.isFinite(ys[k]) || (this.scale.logarithmic && ys[k] <= 0)) { pen = false; continue; }
      written += `${pen ? "L" : "M"}${this.across(xs[k]).toFixed(1)} ${this.up(ys[k]).toFixed(1)}`;
      pen = true;
    }
    return drawn("path", { class: `curve r${line.colour} ${kind}`, d: written, "data-run": line.name, "data-split": line.split });
  }

  // Few points are shown as what they are; a single one would not be seen otherwise.
  dots(line) {
    const finite = line.xs.map((_, k) => k).filter((k) => Number.isFinite(line.ys[k]));
    if (line.split === "train" ? finite.length > 1 : finite.length > 30) return [];
    return finite.map((k) => drawn("circle", { class: `dot r${line.colour}`, cx: this.across(line.xs[k]), cy: this.up(line.ys[k]), r: finite.length === 1 ? 4 : 2.6 }));
  }

  // The crosshair ------------------------------------------------------------------------------------------------------

  values() {
    return this.lines.map((line) => {
      const real = line.real || (line.real = line.xs.map((_, k) => k).filter((k) => Number.isFinite(line.ys[k])));
      const k = real[nearest(real.map((one) => line.xs[one]), this.at)];
      return { line, x: line.xs[k], y: line.ys[k] };
    });
  }

  mark() {
    this.marks.replaceChildren();
    this.reading.hidden = this.at === null || !this.active;
    if (this.at === null) this.plot.setAttribute("aria-valuetext", this.told());
    if (this.at === null || !this.scale || this.at < this.scale.first || this.at > this.scale.last) return;
    const x = this.across(this.at), found = this.values();
    this.marks.append(drawn("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    for (const one of found) this.marks.append(drawn("circle", { class: `dot r${one.line.colour}`, cx: this.across(one.x), cy: this.up(one.y), r: 4 }));
    if (!this.active) return;
    this.readOut(found);
    this.reading.style.left = "0px";  // where it stood decides how wide it may be
    const room = this.width - this.reading.offsetWidth - 4, left = x + 14;
    this.reading.style.left = Math.max(4, left > room ? Math.min(room, x - this.reading.offsetWidth - 14) : left) + "px";
    this.plot.setAttribute("aria-valuenow", this.at);
    const said = found.map((one) => `${this.called(one.line)} ${figure(one.y, this.key)}${this.far(one.x) ? ` (${place(one.x, this.along)})` : ""}`);
    this.plot.setAttribute("aria-valuetext", `${place(this.at, this.along)}: ${said.join("; ")}`);
  }

  // A row for each run, a column for each split. What was not recorded here is the nearest record, and says where that is.
  readOut(found) {
    const splits = [...new Set(this.lines.map((line) => line.split))], runs = [...new Set(this.lines.map((line) => line.name))];
    const head = make("tr", {}, make("th", {}, place(this.at, this.along)), ...(splits.length > 1 ? splits.map((split) => make("th", {}, split)) : []));
    const rows = runs.map((name) => {
      const own = splits.map((split) => found.find((one) => one.line.name === name && one.line.split === split));
      const cells = own.map((one) => {
        if (!one) return make("td", {});
        const far = this.far(one.x);
        return make("td", { class: far ? "far" : "" }, figure(one.y, this.key) + (far ? ` @ ${place(one.x, this.along).replace(/^(step|epoch) /, "")}` : ""));
      });
      return make("tr", {}, make("th", {}, make("i", { class: `swatch b${own.find(Boolean).line.colour}` }), name), ...cells);
    });
    this.reading.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  // Whether a record lies beside the crosshair. Runs are at the same step often, at the same second never.
  far(x) { return this.along === "step" ? x !== this.at : Math.abs(this.across(x) - this.across(this.at)) > 6; }

  // The split is said only where there are several.
  called(line) { return this.lines.some((other) => other.split !== line.split) ? `${line.name} ${line.split}` : line.name; }

  // Before anything is read: how every curve ends.
  told() {
    return this.lines.map((line) => `${this.called(line)} ends at ${figure(line.ys.findLast(Number.isFinite), this.key)}`).join("; ");
  }

  point(at, active) {
    this.at = at;
    this.active = active;
    this.mark();
  }

  go(at) { this.moved(at, this); }

  leave() { this.moved(null, this); }

  read(event) {
    if (!this.scale) return;
    const box = this.plot.getBoundingClientRect(), s = this.scale;
    const wanted = s.first + (s.last - s.first) * (event.clientX - box.left - LEFT) / (this.width - RIGHT - LEFT);
    const stops = this.stops();
    if (stops.length) this.go(stops[nearest(stops, wanted)]);
  }

  press(event) {
    const stops = this.stops();
    if (!stops.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = this.at === null ? stops.length - 1 : nearest(stops, this.at), page = Math.max(1, Math.round(stops.length / 10));
    const to = { ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, PageDown: here - page, PageUp: here + page, Home: 0, End: stops.length - 1 }[event.key];
    if (event.key === "Escape") this.leave();
    if (to === undefined) return;
    event.preventDefault();
    this.go(stops[Math.min(stops.length - 1, Math.max(0, to))]);
  }

  // The same as numbers, for those who cannot see curves or want to copy them.
  tabulate() {
    if (!this.details.open) { this.numbers.replaceChildren(); return; }
    const stops = this.stops(), few = Math.min(ROWS, stops.length);
    const chosen = [...new Set(Array.from({ length: few }, (_, k) => stops[Math.round(k * (stops.length - 1) / Math.max(1, few - 1))]))];
    const head = make("tr", {}, make("th", { scope: "col" }, this.along === "seconds" ? "time" : this.along),
      ...this.lines.map((line) => make("th", { scope: "col", class: "number" }, make("i", { class: `swatch b${line.colour}` }), this.called(line))));
    const at = this.at;
    const rows = chosen.map((stop) => {
      this.at = stop;
      const cells = this.values().map((one) => make("td", { class: "number" }, this.far(one.x) ? "" : figure(one.y, this.key)));
      return make("tr", {}, make("th", { scope: "row" }, place(stop, this.along).replace(/^(step|epoch) /, "")), ...cells);
    });
    this.at = at;
    this.numbers.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  }
}
