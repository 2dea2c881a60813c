// What the page says: below the image, and to a screen reader.

import { ALL, compares, peakOf } from "./explorer_numbers.js";

export function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0\u00a0%";
  if (value > 0 && value < 0.01) return "<\u00a00.01\u00a0%";
  return `${value >= 10 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2)}\u00a0%`;
}

/** 1, 2 or 3 digits that count: 0.034, 2.1, 34. */
export const short = (value) => (value === 0 ? "0" : Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(2))));

export const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

const place = (patch, numbers) => `row ${Math.floor(patch / numbers.columns) + 1} column ${(patch % numbers.columns) + 1}`;

export function tokenName(token, numbers, card) {
  if (token === ALL) return "all patches";
  if (token < numbers.prefix) return card.leading?.[token] ?? `leading token ${token + 1}`;
  return `patch ${place(token - numbers.prefix, numbers)}`;
}

/** "layer 4 head 2", or what stands in its place. */
export function where({ mode, layer, head }, numbers) {
  if (mode === "gradient") return "gradient rollout";
  if (compares(mode)) return mode === "similar" ? "similar patches" : "patch colours";
  const depth = `layer ${layer}`;
  if (mode === "rollout") return `rollout up to ${depth}`;
  return mode === "head" && !numbers.averaged ? `${depth} head ${head}` : `${depth}, mean of heads`;
}

/** One sentence on a map. */
export function described(view, map, numbers, card, topClass) {
  const peak = peakOf(map.values, view, numbers.prefix);
  if (view.mode === "gradient") {
    const what = topClass ? `what speaks for “${topClass}”` : "what makes up the features";
    return `Gradient rollout, ${what}: most in ${place(peak, numbers)} (${percent(map.values[peak])}).`;
  }
  if (compares(view.mode)) {
    const name = tokenName(view.query, numbers, card);
    return `${name[0].toUpperCase()}${name.slice(1)}: most similar to ${place(peak, numbers)} (cosine ${short(map.values[peak])}).`;
  }
  const verb = view.mode === "rollout" ? "has most from" : "looks most at";
  let text = `${tokenName(view.query, numbers, card)}, ${where(view, numbers)}: ${verb} ${place(peak, numbers)} (${percent(map.values[peak])})`;
  if (view.query >= numbers.prefix && view.mode !== "rollout")
    text += `, mean distance ${short(numbers.distanceOf(map.values, view.query - numbers.prefix))}\u00a0px`;
  const leading = map.leading.reduce((sum, value) => sum + value, 0);
  if (leading >= 0.0005) {
    const tokens = numbers.prefix > 1 ? "the leading tokens" : `the ${card.leading?.[0] ?? "leading token"}`;
    text += `; ${percent(leading)} ${view.mode === "rollout" ? "from" : "on"} ${tokens}`;
  }
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

export const MODE_WORDS = {
  head: "Where one head of this layer looks.",
  mean: "Where this layer looks, its heads averaged.",
  rollout: "What of the image has come to this token by this layer, skip connections included.",
  gradient: "Rollout weighed by what speaks for the most probable class. The same for every token and layer.",
  similar: "How similar the features of each patch are to this one's, after the last layer (cosine).",
  colours: "The first three principal components of patch features as red, green and blue: equal colours are similar features.",
};
