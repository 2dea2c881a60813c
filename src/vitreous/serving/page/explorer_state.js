// What the page knows, and what follows from it for each view.

import { ALL } from "./explorer_numbers.js";

export const state = {
  model: null, second: null, // names
  layer: null, head: 0, mode: "mean", scale: "own", strength: 0.6,
  held: null, hover: null, // who looks: {y, x} from 0 to 1 on the image, or {token}; what is under the pointer goes first
};

export const page = {
  catalogue: { models: [], examples: [] }, // what /models says
  subject: null, // the image: {id, blob, example}
  views: [], // of one model or two: {stage, card, numbers, classes, probabilities, drawn}
};

export const cardOf = (name) => page.catalogue.models.find((card) => card.name === name);

/** The view that the controls are for: of the first model that has attention. */
export const lead = () => page.views.find((view) => view.numbers);
export const main = () => lead()?.numbers;

/** The token of a model that a query means: places and tokens of one model have counterparts in another. */
export function tokenOf(view, query) {
  const { rows, columns, prefix } = view.numbers;
  if (query && "y" in query) return prefix + Math.floor(query.y * rows) * columns + Math.floor(query.x * columns);
  const token = query?.token ?? 0;
  if (token === ALL) return view.card.pool === "token" ? 0 : ALL;
  return prefix ? Math.min(token, prefix - 1) : ALL;
}

/** Two models need not have as many layers: the second is shown at the same share of its depth. */
function layerOf(view) {
  const own = view.numbers.layers;
  if (view === lead()) return Math.min(state.layer ?? own - 1, own - 1);
  return main().layers > 1 ? Math.round((state.layer / (main().layers - 1)) * (own - 1)) : own - 1;
}

/** What a view is to show. */
export const askedOf = (view, query = state.hover ?? state.held) => ({
  mode: state.mode, layer: layerOf(view), head: Math.min(state.head, view.numbers.heads - 1), query: tokenOf(view, query),
});
