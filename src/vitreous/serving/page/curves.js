// The page of runs: which are chosen, how they are drawn, and the address that brings both back.
import { make } from "./common.js";
import { Chart } from "./curves_chart.js";
import { aboutMistakes, mistakes, results, settings } from "./curves_compare.js";
import { Watch } from "./curves_data.js";
import { save } from "./curves_save.js";
import { RunsTable } from "./curves_table.js";
import { whole } from "./curves_words.js";

const MOST = 8, CHARTS = 16, NOISY = 30;  // runs at once, as many as there are colours; charts; records from which a mean is drawn
const LONGEST = 20_000;  // characters of an address that names eight runs, and more
const $ = (id) => document.getElementById(id);

const view = { along: "step", smooth: 4, log: true, hidden: new Set(), mistaken: null };
const colours = new Map();  // by name, in the order of choosing
const charts = new Map();
let first = true, begun = false, shownMistakes = "", shownResults = "", shownSettings = "", shownLegend = "";

const watch = new Watch((fresh) => {
  if (first && watch.list.length) { first = false; if (!begun) chooseSome(); }
  describe();
  table.update(watch.list, colours);
  if (fresh.size) refresh(); else explain();
});

const table = new RunsTable($("runs"), $("filter"), $("sort"), (name, on) => choose(name, on));

// Choosing ------------------------------------------------------------------------------------------------------------------

function choose(name, on) {
  if (on && colours.size >= MOST) {
    hear(`At most ${MOST} runs at once; leave one out first.`, true);
    return false;
  }
  hear("", true);
  if (on) {
    const taken = new Set(colours.values());
    colours.set(name, Array.from({ length: MOST }, (_, k) => k).find((k) => !taken.has(k)));
  } else colours.delete(name);
  chosen();
  return true;
}

// Those that go on, or else the newest one: a page that shows something at once.
function chooseSome() {
  const going = watch.list.filter((run) => run.state === "running").slice(0, 4);
  for (const run of going.length ? going : watch.list.slice(0, 1)) colours.set(run.name, colours.size);
  chosen();
}

function chosen() {
  remember();
  watch.choose([...colours.keys()]);
  table.update(watch.list, colours);
  refresh();
}

// The address ---------------------------------------------------------------------------------------------------------------

function remember() {
  const said = new URLSearchParams([...colours.keys()].map((name) => ["run", name]));
  if (view.along !== "step") said.set("along", view.along);
  if (view.smooth !== 4) said.set("smooth", view.smooth);
  if (!view.log) said.set("log", "0");
  for (const split of view.hidden) said.append("hide", split);
  if (view.mistaken && colours.has(view.mistaken)) said.set("mistakes", view.mistaken);
  history.replaceState(null, "", "#" + said);
}

// A name becomes part of an address: one that steps out of /runs/ is no name.
const named = (name) => name.split("/").every((part) => part && part !== "." && part !== "..");

function restore() {
  if (location.hash.length > LONGEST) return false;
  const said = new URLSearchParams(location.hash.slice(1));
  if (location.hash.length < 2 || !["run", "along", "smooth", "log", "hide"].some((key) => said.has(key))) return false;
  view.along = ["step", "epoch", "seconds"].includes(said.get("along")) ? said.get("along") : "step";
  const smooth = Number(said.get("smooth") ?? 4);
  view.smooth = Number.isInteger(smooth) && smooth >= 0 && smooth <= 20 ? smooth : 4;
  view.log = said.get("log") !== "0";
  view.hidden = new Set(said.getAll("hide"));
  view.mistaken = said.get("mistakes");
  colours.clear();
  for (const name of new Set(said.getAll("run"))) if (colours.size < MOST && named(name)) colours.set(name, colours.size);
  reflect();
  return colours.size > 0;
}

function reflect() {
  for (const box of document.getElementsByName("along")) box.checked = box.value === view.along;
  $("smooth").value = view.smooth;
  $("smooth-said").textContent = view.smooth ? view.smooth + " %" : "off";
  $("log").checked = view.log;
}

// Drawing -------------------------------------------------------------------------------------------------------------------

// From steps to epochs or seconds, by what the run recorded of both.
function placed(run, along) {
  if (along === "step") return (step) => step;
  const known = (run.get(along, "all")?.points || []).filter((point) => Number.isFinite(point[1]));
  if (!known.length) return null;
  if (known.length === 1 || known[0][0] > 0) known.unshift([0, 0]);
  return (step) => {
    let low = 0, high = known.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (known[middle][0] <= step) low = middle; else high = middle; }
    const [[a, x], [b, y]] = [known[low], known[high]];
    return b === a ? y : x + (y - x) * (step - a) / (b - a);
  };
}

// The mean over a share of the curve, not of its extremes: where records share a cell, the server sends their means.
function smoothed(one, share) {
  const last = one.means.length ? one.means.at(-1)[0] : -Infinity;
  const source = [...one.means, ...one.points.filter((point) => point[0] > last)].filter((point) => Number.isFinite(point[1]));
  const reach = Math.round(source.length * share / 200);
  if (source.length < NOISY || reach < 1) return null;
  const sums = [0];
  for (const point of source) sums.push(sums.at(-1) + point[1]);
  return source.map((point, k) => {
    const low = Math.max(0, k - reach), high = Math.min(source.length, k + reach + 1);
    return [point[0], (sums[high] - sums[low]) / (high - low)];
  });
}

function lines(key) {
  const found = [];
  for (const [name, colour] of colours) {
    const run = watch.known.get(name), at = run && placed(run, view.along);
    if (!at) continue;
    for (const one of run.series.values()) {
      if (one.key !== key || view.hidden.has(one.split)) continue;
      const line = { name, colour, split: one.split, xs: one.points.map((point) => at(point[0])), ys: one.points.map((point) => point[1] ?? NaN), one };
      const mean = one.split === "train" && view.smooth ? smoothed(one, view.smooth) : null;
      if (mean) line.smooth = { xs: mean.map((point) => at(point[0])), ys: mean.map((point) => point[1]) };
      found.push(line);
    }
  }
  return found;
}

function keys() {
  const found = new Set();
  for (const name of colours.keys()) for (const one of watch.known.get(name)?.series.values() || []) found.add(one.key);
  for (const key of ["epoch", "images", "seconds", "flops"]) found.delete(key);
  const rank = (key) => key === "loss" ? 0 : key === "top1" ? 1 : /^top\d+$/.test(key) ? 2 : key === "lr" ? 4 : key === "images_per_second" ? 5 : 3;
  return [...found].sort((a, b) => rank(a) - rank(b)).slice(0, CHARTS);
}

let waiting = 0;
function refresh() { if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); }); }

function draw() {
  const wanted = keys();
  for (const [key, chart] of charts) if (!wanted.includes(key)) { chart.element.remove(); charts.delete(key); }
  const every = new Map(wanted.map((key) => [key, lines(key)]));
  const end = Math.max(0, ...[...every.values()].flat().map((line) => line.xs.length ? line.xs.at(-1) : 0));
  wanted.forEach((key, k) => {
    if (!charts.has(key)) charts.set(key, new Chart(key, moved, saved));
    const chart = charts.get(key), holder = $("charts");
    if (holder.children[k] !== chart.element) holder.insertBefore(chart.element, holder.children[k] || null);
    chart.show(every.get(key), view.along, view.log && key === "loss", end);
  });
  splits();
  legend();
  explain();
  compare();
  showMistakes();
  $("none").disabled = !colours.size;
}

function moved(at, from) { for (const chart of charts.values()) chart.point(at, chart === from); }

function saved(chart, kind) {
  const rows = [];
  for (const line of kind === "CSV" ? chart.lines : []) {
    const run = watch.known.get(line.name), epoch = placed(run, "epoch"), seconds = placed(run, "seconds");
    for (const [step, value] of line.one.points) rows.push([line.name, line.split, step, epoch ? Number(epoch(step).toPrecision(7)) : NaN, seconds ? Number(seconds(step).toPrecision(7)) : NaN, value ?? NaN]);
  }
  save(chart, kind, rows).catch(() => hear(`The ${kind} could not be made in this browser.`, true));
}

function splits() {
  const found = [...new Set([...colours.keys()].flatMap((name) => [...(watch.known.get(name)?.series.values() || [])].map((one) => one.split)))].filter((split) => split !== "all");
  const holder = $("splits"), there = [...holder.querySelectorAll("input")].map((box) => box.value);
  holder.hidden = found.length < 2;
  if (found.join("\n") !== there.join("\n")) {
    holder.replaceChildren(holder.firstElementChild, ...found.map((split) => make("label", {}, make("input", { type: "checkbox", value: split, on: { change: (event) => {
      if (event.target.checked) view.hidden.delete(split); else view.hidden.add(split);
      remember();
      refresh();
    } } }), " " + split, make("i", { class: "sample " + (split === "train" ? "thin" : "bold"), "aria-hidden": "true" }))));
  }
  for (const box of holder.querySelectorAll("input")) box.checked = !view.hidden.has(box.value);
}

function legend() {
  const state = JSON.stringify([...colours].map(([name, colour]) => [name, colour, watch.known.get(name)?.gone, watch.known.get(name)?.about?.state, watch.known.get(name)?.about?.skipped]));
  if (state === shownLegend) return;
  shownLegend = state;
  $("legend").replaceChildren(...[...colours].map(([name, colour]) => {
    const run = watch.known.get(name), state = run?.gone ? "gone" : run?.about?.state || "loading";
    const skipped = (run?.about?.skipped ? ` · ${whole(run.about.skipped)} unreadable lines` : "") + (run?.about?.values_left_out ? " · too many quantities to show all" : "");
    return make("li", { class: "chip" }, make("i", { class: "swatch b" + colour }), make("span", { class: "who" }, name), make("span", { class: "quiet small" }, state + skipped),
      make("button", { type: "button", class: "plain", "aria-label": "Leave out " + name, on: { click: () => { choose(name, false); $("filter").focus(); } } }, "×"));
  }));
}

function explain() {
  const runs = [...colours.keys()].map((name) => watch.known.get(name)).filter(Boolean);
  const waits = runs.some((run) => !run.about && !run.gone);
  const gone = runs.filter((run) => run.gone).map((run) => run.name);
  let said = "";
  if (watch.nowhere) said = watch.nowhere;
  else if (!watch.list.length && watch.listed) said = "No runs here yet. A run is a folder with config.json and metrics.jsonl: start one with vitreous pretrain or vitreous finetune, and it will appear.";
  else if (!colours.size) said = "Choose runs in the table to see their curves.";
  else if (gone.length) said = `${gone.join(", ")}: not here any more.`;
  else if (!waits && ![...charts.values()].some((chart) => chart.lines.length)) said = runs.some((run) => run.series.size) ? (view.along === "step" ? "Nothing is left to draw: all splits are hidden." : "These runs recorded nothing to place their curves by; choose step.") : "Nothing has been measured yet.";
  $("nothing").textContent = said;
  $("nothing").hidden = !said || (waits && !gone.length);
  $("list").hidden = $("drawn-how").hidden = !watch.list.length && !colours.size && Boolean(said);
}

// What is below is rebuilt only where it changed: whoever reads, scrolls or stands in it is not disturbed.
function rebuilt(holder, ...inside) {
  const places = [...holder.querySelectorAll(".wide")].map((one) => [one.scrollLeft, one.scrollTop, one === document.activeElement]);
  holder.replaceChildren(...inside);
  [...holder.querySelectorAll(".wide")].forEach((one, k) => {
    if (!places[k]) return;
    [one.scrollLeft, one.scrollTop] = places[k];
    if (places[k][2]) one.focus({ preventScroll: true });
  });
}

function compare() {
  const runs = [...colours].filter(([name]) => watch.known.get(name)?.about).map(([name, colour]) => Object.assign(Object.create(watch.known.get(name)), { colour }));
  const several = runs.length > 1, who = runs.map((run) => [run.name, run.colour, run.generation]);
  $("compare").hidden = !runs.length;
  const now = JSON.stringify([who, runs.map((run) => [run.last, run.about.seconds, run.series.size, run.about.state])]);
  if (now !== shownResults) rebuilt($("results"), results(runs));
  shownResults = now;
  if (JSON.stringify(who) === shownSettings) return;
  shownSettings = JSON.stringify(who);
  $("compare-title").textContent = several ? "Compared" : "Results and settings";
  $("settings-title").hidden = $("settings").hidden = !several;
  rebuilt($("settings"), ...(several ? [settings(runs, true)] : []));
  rebuilt($("all-settings"), settings(runs, false));
}

function showMistakes() {
  const known = [...colours.keys()].filter((name) => watch.known.get(name)?.about);
  $("mistakes").hidden = !known.length;
  if (!known.length) { shownMistakes = ""; return; }
  const preferred = known.find((name) => watch.known.get(name).mistakes.length) || known[0];
  const name = known.includes(view.mistaken) ? view.mistaken : preferred, run = watch.known.get(name);
  const state = JSON.stringify([known, name, run.generation, run.about.state, run.about.mistakes_at]);
  if (state === shownMistakes) return;
  shownMistakes = state;
  $("mistaken").replaceChildren(...known.map((one) => make("option", { value: one, selected: one === name }, one)));
  $("mistakes-said").textContent = aboutMistakes(run);
  $("gallery").replaceChildren(...mistakes(run));
}

// Words ---------------------------------------------------------------------------------------------------------------------

function hear(words, problem = false) {
  const where = problem ? $("problem") : $("heard");
  if (where.textContent !== words) where.textContent = words;
  if (problem) where.hidden = !words;
}

function describe() {
  const going = watch.list.filter((run) => run.state === "running").length, live = $("live");
  let words = "Loading …", kind = "";
  if (watch.nowhere) words = "no folder to watch";
  else if (watch.failures) [words, kind] = [`${watch.trouble}; asking again in ${Math.round(watch.wait / 1000)} s`, "broken"];
  else if (document.hidden) words = "paused";
  else if (watch.listed) [words, kind] = going ? [`live: ${going} running`, "on"] : ["nothing is running; watching", ""];
  if (live.textContent !== words) live.textContent = words;
  live.className = `live end small ${kind}`;
  $("count").textContent = watch.listed ? whole(watch.list.length) : "";
  $("left-out").hidden = !watch.leftOut;
  $("left-out").textContent = watch.leftOut ? `${whole(watch.leftOut)} older ones are not listed.` : "";
}

// Beginning -----------------------------------------------------------------------------------------------------------------

for (const box of document.getElementsByName("along")) box.addEventListener("change", () => { view.along = box.value; moved(null, null); remember(); refresh(); });
$("smooth").addEventListener("input", (event) => { view.smooth = Number(event.target.value); reflect(); remember(); refresh(); });
$("log").addEventListener("change", (event) => { view.log = event.target.checked; remember(); refresh(); });
$("mistaken").addEventListener("change", (event) => { view.mistaken = event.target.value; remember(); refresh(); });
$("none").addEventListener("click", () => { colours.clear(); chosen(); $("filter").focus(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("curves").focus(); });
window.addEventListener("hashchange", () => { if (restore()) chosen(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);

begun = restore();
watch.choose([...colours.keys()]);
