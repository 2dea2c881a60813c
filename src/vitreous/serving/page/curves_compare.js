// Chosen runs side by side: what came out, what was set otherwise, and what went wrong.
import { make } from "./common.js";
import { beatsMajority, duration, figure, isShare, title, whole } from "./curves_words.js";

const ALONG = ["step", "epoch", "images", "seconds", "flops", "lr"];
const UNTOLD = new Set(["decisions", "arguments"]);  // reasons, and what was typed: both are in the settings already
const LONGEST = 300, MOST = 500;

function heads(runs, first) {
  return make("thead", {}, make("tr", {}, make("th", { scope: "col" }, first),
    ...runs.map((one) => make("th", { scope: "col" }, make("i", { class: `swatch b${one.colour}` }), one.name))));
}

const scrolled = (name, table) => make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": name }, table);

// The last and the best of every quantity. Lowest and highest survive the thinning of curves, so that the best is exact.
export function results(runs) {
  const rows = [];
  const add = (name, values, better, floors = []) => {
    const known = values.filter((value) => value !== null).map((value) => value.value);
    if (!known.length) return;
    const best = better && known.length > 1 && new Set(known).size > 1 ? (better === "low" ? Math.min(...known) : Math.max(...known)) : null;
    rows.push(make("tr", {}, make("th", { scope: "row" }, name), ...values.map((value, k) => {
      if (value === null) return make("td", { class: "number" }, "–");
      const won = best !== null && value.value === best && beatsMajority(value.value, floors[k]);
      return make("td", { class: "number" + (won ? " won" : "") }, value.words, won ? make("span", { class: "heard" }, " (the best)") : null);
    })));
  };
  const ids = [...new Set(runs.flatMap((run) => [...run.series.keys()]))].map((id) => id.split("\n")).filter(([key]) => !ALONG.includes(key));
  const rank = (key) => key === "loss" ? 1 : isShare(key) ? 0 : key === "images_per_second" ? 3 : 2;
  ids.sort((a, b) => (a[1] === "train") - (b[1] === "train") || rank(a[0]) - rank(b[0]));
  for (const [key, split] of ids) {
    const better = key === "loss" ? "low" : isShare(key) ? "high" : null;
    const floors = key === "top1" ? runs.map((run) => run.about?.majority ?? NaN) : [];
    const finite = runs.map((run) => (run.get(key, split)?.points || []).filter((point) => Number.isFinite(point[1])));
    const words = `${split} ${title(key).toLowerCase()}`;
    add(words + ", last", finite.map((points) => points.length ? { value: points.at(-1)[1], words: figure(points.at(-1)[1], key) } : null), better, floors);
    if (!better || !finite.some((points) => points.length > 1) || split === "train") continue;
    add(words + ", best", finite.map((points) => {
      if (!points.length) return null;
      const best = points.reduce((a, b) => (better === "low" ? b[1] < a[1] : b[1] > a[1]) ? b : a);
      return { value: best[1], words: `${figure(best[1], key)} (step ${whole(best[0])})` };
    }), better, floors);
  }
  const about = (key) => runs.map((run) => run.about && Number.isFinite(run.about[key]) ? run.about[key] : null);
  add("accuracy of the largest class alone", about("majority").map((value) => value === null ? null : { value, words: figure(value, "top1") }), null);
  add("steps", about("step").map((value) => value === null ? null : { value, words: whole(value) }), null);
  for (const [key, words] of [["epoch", figure], ["images", whole]]) {
    add(key === "epoch" ? "epochs" : "images seen", runs.map((run) => { const last = run.get(key, "all")?.points.at(-1)?.[1]; return Number.isFinite(last) ? { value: last, words: words(last) } : null; }), null);
  }
  add("time", about("seconds").map((value) => value === null ? null : { value, words: duration(value) }), null);
  const [flop, flops] = unitOf(about("flops"), [[1e18, "EFLOP"], [1e15, "PFLOP"], [1e12, "TFLOP"], [1e9, "GFLOP"]]);
  add(flops + " of training", about("flops").map((value) => value === null ? null : { value: value / flop, words: figure(value / flop) }), null);
  for (const [key, unit, words] of [["flops", flop, flops], ["seconds", ...unitOf(about("seconds"), [[3600, "hour"], [60, "minute"], [1, "second"]])]]) {
    const spent = about(key);
    add("accuracy per " + words, about("top1").map((top1, k) => {
      const value = top1 === null || !spent[k] ? null : 100 * top1 * unit / spent[k];
      return value === null ? null : { value, words: figure(value) + " %" };
    }), null);
  }
  return scrolled("results of the chosen runs", make("table", { class: "compared" }, heads(runs, "result"), make("tbody", {}, ...rows)));
}

/** One unit for all runs: the largest that the largest of them has one of. */
function unitOf(amounts, units) {
  const most = Math.max(...amounts);
  return units.find(([unit]) => most >= unit) || units.at(-1);
}

function flat(value, name = "", found = new Map()) {
  if (value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
    for (const [key, inner] of Object.entries(value)) if (name || !UNTOLD.has(key)) flat(inner, name ? `${name}.${key}` : key, found);
  } else if (name) {
    const said = Array.isArray(value) ? value.map((one) => typeof one === "object" ? JSON.stringify(one) : String(one)).join(", ") : value === null ? "none" : typeof value === "object" ? "none" : String(value);
    found.set(name, said.length > LONGEST ? said.slice(0, LONGEST) + " …" : said);
  }
  return found;
}

// A long name breaks behind its dots and underscores, not within a word.
const breakable = (name) => name.split(/(?<=[._])/).flatMap((part) => [part, make("wbr")]);

// Hashes are told by their beginning.
function value(said) {
  if (said === undefined) return make("td", {}, "–");
  return /^[0-9a-f]{24,}$/.test(said) ? make("td", { title: said }, said.slice(0, 8) + "…") : make("td", {}, said);
}

export function settings(runs, onlyDifferent) {
  const every = runs.map((run) => flat(run.config)), names = [...new Set(every.flatMap((one) => [...one.keys()]))];
  const told = names.filter((name) => !onlyDifferent || new Set(every.map((one) => one.get(name))).size > 1);
  if (!told.length) return make("p", { class: "quiet" }, onlyDifferent ? "None: these runs were set alike." : "No settings could be read.");
  const rows = told.slice(0, MOST).map((name) => make("tr", {}, make("th", { scope: "row" }, ...breakable(name)), ...every.map((one) => value(one.get(name)))));
  const more = told.length > MOST ? make("p", { class: "quiet small" }, `${whole(told.length - MOST)} more in config.json.`) : null;
  return make("div", { class: "long" }, scrolled(onlyDifferent ? "settings that differ" : "all settings", make("table", { class: "compared" }, heads(runs, "setting"), make("tbody", {}, ...rows))), more);
}

function bars(guesses, labels) {
  const known = guesses.filter((one) => Array.isArray(one) && typeof one[0] === "string").slice(0, 5);
  return make("ol", { class: "guesses" }, ...known.map(([name, share]) => {
    const row = make("li", { class: labels.includes(name) ? "right" : "" }, make("span", { title: name }, name), make("span", {}, Number.isFinite(share) ? Math.round(100 * share) + " %" : "–"));
    row.style.setProperty("--p", Number.isFinite(share) ? Math.min(1, Math.max(0, share)) : 0);
    return row;
  }));
}

export function mistakes(run) {
  return run.mistakes.map((one) => {
    const guesses = one.guesses?.length ? one.guesses : [[one.guess ?? "?", one.probability]];
    const labels = (one.label || "").split(" + ");
    let image = make("p", { class: "quiet small" }, "no image");
    if (typeof one.picture === "string" && one.picture.startsWith("data:image/")) {
      image = make("img", { alt: `${one.label}, taken for ${one.guess}`, loading: "lazy", src: one.picture });
      image.addEventListener("load", () => { if (Math.max(image.naturalWidth, image.naturalHeight) <= 64) image.classList.add("pixels"); });
    }
    return make("figure", {}, make("div", { class: "seen" }, image), make("figcaption", {}, make("span", { class: "quiet" }, "true: "), make("b", {}, one.label || "–"),
      bars(guesses, labels), make("span", { class: "quiet small id", title: one.id || "" }, [Number.isFinite(one.loss) ? "loss " + figure(one.loss) : "", one.id || ""].filter(Boolean).join(" · "))));
  });
}

// Why there is nothing to show, where there is nothing.
export function aboutMistakes(run) {
  if (run.mistakesOf) {
    const of = run.mistakesOf, many = Number.isFinite(of.images) ? whole(of.images) + " " : "";
    if (!run.mistakes.length) return `None of the ${many}${of.split || ""} images was taken for another.`;
    return `Of ${many}${of.split || ""} images, those with the highest loss${Number.isFinite(of.step) ? " at step " + whole(of.step) : ""}. The bars are the model’s predictions.`;
  }
  if (run.config?.recipe?.objective === "masked-patch") return "This run learns without classes, so that it takes no image for another.";
  if (run.about?.state === "running") return "This run keeps no mistakes yet: its first evaluation writes them.";
  return "This run kept no mistakes as data: it was made before mistakes.json, or was never evaluated. Its report.html may show some.";
}
