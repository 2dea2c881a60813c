// Views that are taken away and come back: links, and the image as a file.

import { saved } from "./common.js";
import * as input from "./explorer_input.js";
import { composite, copied } from "./explorer_keep.js";
import * as link from "./explorer_link.js";
import { ALL } from "./explorer_numbers.js";
import { askedOf, cardOf, lead, main, page, state } from "./explorer_state.js";
import { tokenName, where } from "./explorer_words.js";

const $ = (id) => document.getElementById(id);

/** Who looks, in rows and columns of the model that the controls are for. */
function queried() {
  const numbers = main();
  if (state.held && "y" in state.held && numbers)
    return { kind: "patch", row: Math.floor(state.held.y * numbers.rows), column: Math.floor(state.held.x * numbers.columns) };
  return state.held && state.held.token !== ALL && "token" in state.held ? { kind: "token", index: state.held.token } : { kind: "all" };
}

/** The view as a fragment; with an image of the person's own only where it is asked for: addresses are kept in histories. */
async function fragment(whole) {
  const { subject } = page;
  const own = whole && subject && !subject.example ? await input.linkable(subject.blob, page.views[0]?.image) : null;
  const image = own ? await link.lettered(own) : null;
  return link.written({ ...state, layer: state.layer ?? 0, query: queried(), example: subject?.example, image });
}

export const address = async () => `${location.origin}${location.pathname}#${await fragment(true)}`;

let remembering = 0;

/** Write the view into the address bar, soon. */
export function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(async () => {
    if (page.views.length) history.replaceState(null, "", `#${await fragment(false)}`);
  }, 400);
}

const known = () => ({ models: page.catalogue.models.map((card) => card.name), examples: page.catalogue.examples.map((one) => one.name) });

/** What the address asks for; null where it asks for nothing. */
export const wanted = () => link.read(location.hash, known());

/** Make what an address asks for the state of the page; what it leaves open, or what there is not, stays as it was. */
export function adopt(view) {
  if (view.model) state.model = view.model;
  state.second = view.second && view.second !== state.model ? view.second : null;
  for (const key of ["layer", "head", "mode"]) if (view[key] !== undefined) state[key] = view[key];
  state.scale = view.scale;
  state.hover = null;
  const card = [state.model, state.second].map(cardOf).find((one) => one?.has_attention);
  if (!card) return;
  if (state.layer !== null) state.layer = Math.min(state.layer, card.layers - 1);
  state.head = Math.min(state.head, card.heads - 1);
  const { kind, row, column, index } = view.query ?? {}, [rows, columns] = card.grid;
  if (kind === "patch" && row < rows && column < columns) state.held = { y: (row + 0.5) / rows, x: (column + 0.5) / columns };
  else if (kind === "token" && index < card.prefix_tokens) state.held = { token: index };
  else if (kind === "all") state.held = { token: ALL };
}

let thanks = 0;

function kept(words) {
  $("kept").textContent = words;
  clearTimeout(thanks);
  thanks = setTimeout(() => ($("kept").textContent = ""), 4000);
}

export function listen() {
  $("copy").addEventListener("click", async () => {
    const words = await address();
    if (await copied(words)) return kept("Link copied.");
    history.replaceState(null, "", words);
    kept("The browser did not allow copying; the link is in the address bar.");
  });

  $("download").addEventListener("click", async () => {
    const shown = page.views.map((view) => {
      const asked = view.numbers && askedOf(view);
      const token = asked && asked.mode !== "gradient" ? `${tokenName(asked.query, view.numbers, view.card)}, ` : "";
      return { stage: view.stage, words: [view.card.name, asked ? `${token}${where(asked, view.numbers)}` : ""] };
    });
    const kind = state.mode === "similar" ? "likeness" : "heat";
    const ends = { kind, low: $("legend-low").textContent, high: $("legend-high").textContent };
    const scale = main() && state.mode !== "colours" ? ends : null;
    const parts = ["vitreous", state.model, main() && where(askedOf(lead()), main())].filter(Boolean);
    saved(await composite(shown, scale), `${parts.join("-").replace(/[^\w.-]+/g, "-")}.png`);
    kept("Image saved.");
  });
}
