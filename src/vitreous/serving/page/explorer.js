// The page: what changes its state, and what is drawn when it has changed.

import { make } from "./common.js";
import * as api from "./explorer_api.js";
import { paintLegend } from "./explorer_colours.js";
import * as input from "./explorer_input.js";
import { ALL, compares, LAYERLESS, peakOf, scaled } from "./explorer_numbers.js";
import { Heads, showGuesses, Strip } from "./explorer_panels.js";
import { Player } from "./explorer_play.js";
import { Positions } from "./explorer_positions.js";
import { answered } from "./explorer_run.js";
import { Scatter } from "./explorer_scatter.js";
import * as share from "./explorer_share.js";
import { Stage } from "./explorer_stage.js";
import { askedOf, cardOf, lead, main, page, state, tokenOf } from "./explorer_state.js";
import { described, MODE_WORDS, percent, short } from "./explorer_words.js";

const $ = (id) => document.getElementById(id);
const MANY = 300; // tokens from which small maps wait until the pointer rests

// Drawing: at most once a frame -------------------------------------------------------------------------------------------

let drawing = 0, resting = 0, saying = 0;

function changed() {
  drawing ||= requestAnimationFrame(draw);
}

function draw() {
  drawing = 0;
  const sentences = [], lows = [], highs = [];
  for (const view of page.views) {
    if (!view.numbers) continue;
    const asked = askedOf(view), map = view.numbers.map(asked);
    const { shares, low, high } = scaled(map.values, state.scale, view.numbers.patches, asked.mode);
    view.drawn = { ...asked, values: map.values, leading: map.leading };
    const token = asked.mode === "gradient" ? NaN : asked.query; // gradient rollout is nobody's look
    view.stage.update({
      shares, token, peak: peakOf(map.values, asked, view.numbers.prefix), strength: state.strength,
      kind: compares(asked.mode) ? "likeness" : "heat", colours: asked.mode === "colours" ? view.numbers.colours : null,
    });
    const sentence = described(asked, map, view.numbers, view.card, view.classes[0]);
    sentences.push(page.views.length > 1 ? `${view.card.name}: ${sentence}` : sentence);
    const written = compares(asked.mode) ? short : percent;
    lows.push(written(low));
    highs.push(written(high));
  }
  [$("legend-low").textContent, $("legend-high").textContent] = [lows, highs].map((ends) => [...new Set(ends)].join(" / "));
  $("told").replaceChildren(...sentences.map((sentence) => make("span", {}, sentence)));
  const query = state.hover ?? state.held;
  positions.update(query && "y" in query ? query : null);
  clearTimeout(resting);
  if (main()?.tokens > MANY) resting = setTimeout(drawSmall, 80);
  else drawSmall();
  clearTimeout(saying);
  saying = setTimeout(() => ($("heard").textContent = sentences.join(" ")), 350); // not every patch on the way
}

function drawSmall() {
  const numbers = main();
  if (!numbers) return;
  const asked = { ...askedOf(lead()), ...(compares(state.mode) && { mode: "mean" }) }; // layers and heads have attention alone
  const shares = (changes) => scaled(numbers.map({ ...asked, ...changes }).values, state.scale, numbers.patches).shares;
  const one = { head: state.head, mean: null }[state.mode];
  heads.update((head) => shares(head === null ? { mode: "mean" } : { mode: "head", head }), numbers.averaged ? null : one);
  strip.update(numbers, (layer) => shares({ layer }), asked.layer);
}

function controls() {
  const numbers = main();
  if (numbers) {
    $("layer").max = numbers.layers - 1;
    $("layer").value = state.layer;
    $("layer-number").textContent = `${state.layer} of 0–${numbers.layers - 1}`;
    $("layer").disabled = $("play").disabled = LAYERLESS.includes(state.mode) || numbers.layers === 1;
    $("strip").classList.toggle("idle", LAYERLESS.includes(state.mode));
    scatter.select(state.layer, state.mode === "head" ? state.head : null);
  }
  for (const radio of document.getElementsByName("mode")) {
    radio.checked = radio.value === state.mode;
    radio.disabled = radio.value === "head" && Boolean(numbers?.averaged);
  }
  const averaged = numbers?.averaged ? " There is too much attention here to send every head: their mean is shown." : "";
  $("mode-words").textContent = MODE_WORDS[state.mode] + averaged;
  $("scale").value = state.scale;
  const [own, same] = compares(state.mode) ? ["from the lowest of each map", "the same for all"] : ["each map by its largest", "the same for all, logarithmic"];
  [$("scale").options[0].textContent, $("scale").options[1].textContent] = [own, same];
  $("invite").textContent = compares(state.mode)
    ? "Point at a patch, or tap it, to see which patches are similar." : "Point at a patch, or tap it, to see where it looks.";
  for (const part of document.querySelectorAll(".of-scale")) part.hidden = state.mode === "colours"; // these have no scale
  paintLegend($("legend"), compares(state.mode) ? "likeness" : "heat");
}

function set(changes) {
  Object.assign(state, changes);
  controls();
  changed();
  share.remember();
}

// Parts of the page -------------------------------------------------------------------------------------------------------

const heads = new Heads($("thumbs"), (head) => set(head === null ? { mode: "mean" } : { mode: "head", head }));
const strip = new Strip($("strip"), $("layer"), (layer) => !LAYERLESS.includes(state.mode) && set({ layer }));
const scatter = new Scatter($("scatter"), $("scatter-told"), (layer, head) =>
  set(main()?.averaged ? { layer } : { layer, head, mode: "head" }));
const positions = new Positions($("position-one"), $("position-all"), $("positions-told"), (y, x) => set({ held: { y, x }, hover: null }));

const player = new Player($("play"), (layer) => set({ layer }));

function measured() {
  const kind = $("measure").value;
  $("measured").textContent = kind === "distance" ? "Attention distance" : "Attention entropy";
  if (!main()) return;
  scatter.build(main()[kind], kind === "distance" ? "px" : "bits");
  controls();
}

const actions = {
  look: (query, held) => {
    if (held) return set({ held: query, hover: null });
    state.hover = query;
    changed();
  },
  held: (stage) => tokenOf(page.views.find((view) => view.stage === stage), state.held),
  layer: (step) => main() && set({ layer: Math.min(main().layers - 1, Math.max(0, state.layer + step)) }),
};

// Running a model ---------------------------------------------------------------------------------------------------------

let running = null, taken = 0, shown = null, again = begin; // `shown`: the image that the views are of

function tell(words, kind = "", retry = false) {
  $("note").hidden = !words;
  $("note").className = `note ${kind}`;
  $("note-words").textContent = words;
  $("again").hidden = !retry;
}

function busy(words) {
  $("busy").textContent = words;
  $("layout").setAttribute("aria-busy", String(Boolean(words)));
}

/** Say what went wrong; what may go right another time can be tried again, by `retry`. */
function failed(error, retry) {
  if (!(error instanceof api.Told)) console.error(error);
  const words = error instanceof api.Told ? [error.message, error.hint].filter(Boolean).join(" ") : "Something on this page went wrong. Load it again.";
  again = retry;
  tell(words, "bad", !error.refused);
}

function markExample() {
  for (const button of $("examples").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.dataset.name === page.subject?.example));
}

/** Look at another image: a blob, or an example by name. The latest wish counts, whatever was slow before it. */
async function take(blob, example = null) {
  player.stop();
  const id = ++taken;
  try {
    const content = example ? await api.example(page.catalogue.examples.find((one) => one.name === example).url) : await input.sendable(blob);
    if (id !== taken) return;
    page.subject = { id, blob: content, example };
  } catch (error) {
    if (id === taken) failed(error, () => take(blob, example));
    return;
  }
  markExample();
  await run();
}

async function run() {
  if (!page.subject || !state.model) return;
  running?.abort();
  const own = (running = new AbortController());
  const cards = [cardOf(state.model), state.second && cardOf(state.second)].filter(Boolean);
  tell("");
  try {
    const found = [];
    for (const card of cards) {
      busy(`${card.name} is looking …`);
      const onWait = (seconds) => busy(`The server is busy; asking again in ${seconds} s …`);
      found.push(await answered(card, page.subject, { signal: own.signal, onWait }));
    }
    if (own.signal.aborted) return;
    shown = page.subject;
    install(found);
  } catch (error) {
    if (own.signal.aborted) return;
    if (error.refused && shown) page.subject = shown; // a file that is no image: the one in sight stays the one to go on with
    markExample();
    failed(error, run);
  } finally {
    if (running === own) busy("");
  }
}

function install(found) {
  const stages = page.views.map((view) => view.stage);
  stages.splice(found.length).forEach((stage) => stage.remove());
  page.views = found.map((answer, index) => ({ ...answer, stage: stages[index] ?? new Stage($("views"), actions) }));
  const numbers = main();
  $("layout").dataset.state = numbers ? "ready" : "plain";
  $("layout").classList.toggle("comparing", page.views.length > 1);
  for (const span of document.querySelectorAll(".of")) span.textContent = page.views.length > 1 && numbers ? `of ${lead().card.name}` : "";
  if (numbers) {
    state.layer = Math.min(state.layer ?? numbers.layers - 1, numbers.layers - 1);
    state.head = Math.min(state.head, numbers.heads - 1);
    if (numbers.averaged && state.mode === "head") state.mode = "mean";
    state.held ??= { token: numbers.prefix ? 0 : ALL };
    heads.build(numbers);
    measured();
    showPositions(lead().card.name);
    ahead(numbers);
  }
  for (const view of page.views) view.stage.show(view.card, view.image, view.numbers);
  showGuesses($("guesses"), page.views);
  tell(page.views.map((view) => view.why).filter(Boolean).join(" "));
  controls();
  changed();
  share.remember();
}

/** Work out what rollout needs while nothing else is to be done, a layer at a time, so that its first map is there at once. */
function ahead(numbers, layer = 0) {
  if (layer >= numbers.layers || numbers !== main()) return;
  const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 30));
  later(() => {
    numbers.mean(layer);
    ahead(numbers, layer + 1);
  });
}

async function showPositions(model) {
  try {
    const answer = await api.positions(model);
    if (lead()?.card.name !== model) return;
    positions.build(answer);
    changed();
  } catch (error) {
    if (lead()?.card.name === model) positions.missing([error.message, error.hint].filter(Boolean).join(" "));
  }
}

// Beginning ---------------------------------------------------------------------------------------------------------------

function offer() {
  const { models, examples } = page.catalogue;
  const option = (name, words = name) => make("option", { value: name }, words);
  $("model").replaceChildren(...models.map((card) => option(card.name)));
  $("second").replaceChildren(option("", "nothing"), ...models.map((card) => option(card.name)));
  $("model-label").hidden = $("second-label").hidden = models.length < 2;
  $("examples").replaceChildren(...examples.map(({ name, url }) => {
    const image = make("img", { src: url, alt: `Example ${name}`, loading: "lazy", decoding: "async" });
    return make("li", {}, make("button", { type: "button", title: name, "data-name": name, on: { click: () => take(null, name) } }, image));
  }));
  $("examples").hidden = !examples.length;
}

function choices() {
  if (state.second === state.model) state.second = null;
  $("model").value = state.model;
  $("second").value = state.second ?? "";
  for (const option of $("second").options) option.disabled = option.value === state.model;
}

async function restore(view) {
  share.adopt(view);
  choices();
  controls();
  const { subject, catalogue } = page;
  if (view.image) return take(view.image);
  if (view.example && view.example !== subject?.example) return take(null, view.example);
  if (subject) return run();
  if (catalogue.examples.length) return take(null, catalogue.examples[0].name);
}

/** A server of runs alone. */
function nothing() {
  for (const part of ["input", "layout", "model-label"]) $(part).hidden = true;
  tell("This server has no model to look into. Start it with a checkpoint: vitreous serve CHECKPOINT.");
  if (page.catalogue.runs) $("note").append(make("a", { class: "button", href: "/curves" }, "See its runs"));
}

async function begin() {
  try {
    page.catalogue = await api.models();
  } catch (error) {
    return failed(error, begin);
  }
  tell("");
  state.model = page.catalogue.default ?? page.catalogue.models[0]?.name;
  if (!state.model) return nothing();
  offer();
  await restore(share.wanted() ?? { scale: "own" });
}

function chosen() {
  state.model = $("model").value;
  state.second = $("second").value || null;
  choices();
  run();
}

$("layer").addEventListener("input", () => set({ layer: Number($("layer").value) }));
$("modes").addEventListener("change", (event) => set({ mode: event.target.value }));
$("scale").addEventListener("change", () => set({ scale: $("scale").value }));
$("strength").addEventListener("input", () => set({ strength: Number($("strength").value) / 100 }));
$("measure").addEventListener("change", measured);
$("model").addEventListener("change", chosen);
$("second").addEventListener("change", chosen);
$("again").addEventListener("click", () => again());
$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after "#" is for views
  (document.querySelector(".view .frame") ?? $("choose")).focus();
});
addEventListener("hashchange", () => {
  const view = share.wanted();
  if (view && page.catalogue.models.length) restore(view);
});
addEventListener("resize", changed);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
input.listen({ take: (blob) => take(blob), tell: (words) => tell(words), over: (held) => ($("over").hidden = !held) });
share.listen();

// For tests, and for whoever opens the console: what is shown, in numbers.
const inNumbers = () => page.views.map(({ card, drawn, classes, probabilities }) => ({ model: card.name, classes, probabilities, ...drawn }));
window.vitreous = { state, shown: inNumbers, address: share.address };

begin();
