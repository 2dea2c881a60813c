// The table of runs: sorted by any column, filtered by words, chosen by boxes.
import { make } from "./common.js";
import { ago, beatsMajority, duration, figure, whole } from "./curves_words.js";

const STATES = { running: 0, stopped: 1, finished: 2 };

// [what, heading, how it sorts, whether the first click puts the largest on top]
const COLUMNS = [
  ["name", "Run", (run) => run.name, false],
  ["state", "State", (run) => STATES[run.state] ?? 3, false],
  ["model", "Model", (run) => run.model, false],
  ["data", "Data", (run) => run.data, false],
  ["progress", "Steps", (run) => run.steps ? run.step / run.steps : run.step, true],
  ["loss", "Loss", (run) => run.loss, false],
  ["top1", "Accuracy", (run) => run.top1, true],
  ["images_per_second", "Images/s", (run) => run.images_per_second, true],
  ["seconds", "Time", (run) => run.seconds, true],
  ["flops", "PFLOP", (run) => run.flops, true],
  ["updated", "Changed", (run) => run.updated, true],
];

const NUMBERS = ["loss", "top1", "images_per_second", "seconds", "flops", "updated"];

export class RunsTable {
  constructor(table, filter, sort, chosen) {
    Object.assign(this, { table, filter, sort, chosen, runs: [], colours: new Map(), by: "updated", falling: true, rows: new Map() });
    this.heads = new Map();
    const head = make("tr", {}, make("th", { scope: "col" }, make("span", { class: "heard" }, "Chosen")));
    for (const [what, heading, , falling] of COLUMNS) {
      const cell = make("th", { scope: "col", class: NUMBERS.includes(what) ? "number" : "" },
        make("button", { type: "button", class: "plain", on: { click: () => this.order(what, this.by === what ? !this.falling : falling) } }, heading));
      this.heads.set(what, cell);
      head.append(cell);
      sort.append(make("option", { value: what }, heading));
    }
    table.tHead.replaceChildren(head);
    sort.addEventListener("change", () => this.order(sort.value, COLUMNS.find(([what]) => what === sort.value)[3]));
    filter.addEventListener("input", () => this.show());
    this.order("updated", true);
  }

  order(by, falling) {
    Object.assign(this, { by, falling });
    this.sort.value = by;
    for (const [what, cell] of this.heads) {
      if (what === by) cell.setAttribute("aria-sort", falling ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
    }
    this.show();
  }

  update(runs, colours) {
    Object.assign(this, { runs, colours });
    this.show();
  }

  // How many are shown.
  show() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => [run.name, run.state, run.model, run.data, run.verb].join(" ").toLowerCase();
    const shown = this.runs.filter((run) => words.every((word) => text(run).includes(word)));
    const key = COLUMNS.find(([what]) => what === this.by)[2];
    const known = (value) => value !== null && value !== undefined;
    shown.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (!known(x) || !known(y)) return known(y) - known(x);  // what is not known comes last, either way
      const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return (this.falling ? -order : order) || a.name.localeCompare(b.name, "en", { numeric: true });
    });
    const body = this.table.tBodies[0], rows = shown.map((run) => this.row(run));
    // Rows that are in place already stay untouched, so that the keyboard does not lose its place while runs go on.
    rows.forEach((row, k) => { if (body.rows[k] !== row) body.insertBefore(row, body.rows[k] || null); });
    while (body.rows.length > rows.length) body.deleteRow(-1);
    for (const name of [...this.rows.keys()]) if (!this.runs.some((run) => run.name === name)) this.rows.delete(name);
    return shown.length;
  }

  row(run) {
    let there = this.rows.get(run.name);
    if (!there) this.rows.set(run.name, there = this.empty(run));
    const { row, box, swatch, cells } = there, colour = this.colours.get(run.name);
    box.checked = colour !== undefined;
    swatch.className = "swatch" + (colour === undefined ? "" : " b" + colour);
    row.classList.toggle("chosen", colour !== undefined);
    const put = (what, words) => { if (cells[what].textContent !== words) cells[what].textContent = words; };
    for (const what of ["model", "data"]) {
      put(what, run[what] || "–");
      cells[what].title = run[what] || "";
    }
    put("loss", figure(run.loss));
    const alone = Number.isFinite(run.majority) ? ` (largest class alone ${figure(run.majority, "top1")})` : "";
    put("top1", figure(run.top1, "top1") + alone);
    cells.top1.classList.toggle("below", run.top1 !== null && !beatsMajority(run.top1, run.majority));
    put("images_per_second", run.images_per_second === null ? "–" : whole(run.images_per_second));
    put("seconds", duration(run.seconds));
    put("flops", figure(run.flops === null ? null : run.flops / 1e15));
    put("updated", ago(run.updated));
    cells.loss.title = run.split ? "of " + run.split : "";
    there.state.textContent = run.state;
    there.state.className = "state " + run.state;
    there.said.textContent = run.steps ? `${whole(run.step)} of ${whole(run.steps)}` : whole(run.step);
    there.fill.style.width = 100 * Math.min(1, run.steps ? run.step / run.steps : 0) + "%";
    return row;
  }

  empty(run) {
    const cells = {}, row = make("tr", {});
    const swatch = make("i", { class: "swatch" }), box = make("input", { type: "checkbox", "aria-label": "Show " + run.name });
    box.addEventListener("change", () => { if (!this.chosen(run.name, box.checked)) box.checked = !box.checked; });
    const name = make("th", { scope: "row", class: "name" }, make("label", {}, swatch, run.name));
    row.append(make("td", { class: "box" }, make("label", {}, box)), name);
    name.firstChild.addEventListener("click", (event) => { event.preventDefault(); box.click(); });
    const state = make("span", { class: "state" }), said = make("span", { class: "small" });
    const fill = make("span"), bar = make("span", { class: "bar", "aria-hidden": "true" }, fill);
    for (const [what, heading] of COLUMNS.slice(1)) {
      cells[what] = make("td", { class: [NUMBERS.includes(what) ? "number" : "", what].join(" ").trim(), "data-label": heading });
      row.append(cells[what]);
    }
    cells.state.append(state);
    cells.progress.append(bar, said);
    return { row, box, swatch, cells, state, said, fill };
  }
}
