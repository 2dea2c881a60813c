// The numbers of one answer, and every map that can be made of them without asking the server again.
//
// A token is known by its number: the leading ones (class token, registers) first, then the patches, row by row.
// The query ALL stands for all patches together: what a model without class token reads.

export const ALL = -1;

/** Ways to look that are the same in every layer. */
export const LAYERLESS = ["gradient", "similar", "colours"];

/** Whether patches are compared by their features, and attention is not asked. */
export const compares = (mode) => mode === "similar" || mode === "colours";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const SIX = new Uint8Array(128); // bits that a letter stands for
for (let place = 0; place < 64; place++) SIX[LETTERS.charCodeAt(place)] = place;

/** The bytes that a base64 text stands for. By hand where need be: atob would make a second text of tens of megabytes. */
export function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const out = new Uint8Array((text.length / 4) * 3 - padding), whole = out.length - (out.length % 3);
  let from = 0, to = 0;
  const next = () => SIX[text.charCodeAt(from++) & 127];
  while (to < whole) {
    const three = (next() << 18) | (next() << 12) | (next() << 6) | next();
    out[to++] = three >> 16;
    out[to++] = three >> 8;
    out[to++] = three;
  }
  if (to < out.length) {
    const rest = (next() << 18) | (next() << 12) | (next() << 6);
    out[to++] = rest >> 16;
    if (to < out.length) out[to] = rest >> 8;
  }
  return out;
}

export class Numbers {
  /** `answer` is what /attention gave, `card` what /models says of the model. */
  constructor(answer, card) {
    [this.rows, this.columns] = answer.grid;
    this.patches = this.rows * this.columns;
    this.prefix = answer.prefix_tokens;
    this.tokens = this.prefix + this.patches;
    this.layers = answer.layers;
    this.heads = answer.heads;
    this.averaged = answer.averaged_heads;
    this.step = card.step;
    this.distance = answer.distance;
    this.entropy = answer.entropy;
    this.gradient = Float32Array.from(answer.gradient_rollout.values);
    this.attention = bytes(answer.attention.data);
    this.maximum = new Float32Array(bytes(answer.maximum.data).buffer);
    this.similarity = { data: new Int8Array(bytes(answer.similarity.data).buffer), scale: answer.similarity.scale };
    this.colours = bytes(answer.patch_colours.data); // red, green and blue of every patch
    this.rollout = { data: bytes(answer.rollout_by_layer.data), maximum: answer.rollout_by_layer.maximum };
    const expected = this.layers * this.heads * this.tokens;
    const features = this.similarity.data.length === this.tokens ** 2 && this.colours.length === 3 * this.patches;
    if (this.maximum.length !== expected || this.attention.length !== expected * this.tokens || !features)
      throw new Error("the answer does not have as many numbers as it says");
    this.means = []; // of heads, a matrix for each layer, made when first wanted
  }

  /** Bytes, with the means that rollout will need. */
  get size() {
    return this.attention.length + 4 * this.layers * this.tokens ** 2;
  }

  /** Where a token looks, over all tokens, in one head; added to `out` with a weight. */
  addRow(out, layer, head, token, weight) {
    const row = (layer * this.heads + head) * this.tokens + token;
    const scale = (weight * this.maximum[row]) / 255, data = this.attention, count = this.tokens, start = row * count;
    for (let place = 0; place < count; place++) out[place] += scale * data[start + place];
  }

  /** Where a query looks, over all tokens: in one head, or in the mean of them where `head` is null. */
  looks(layer, head, query) {
    const out = new Float32Array(this.tokens);
    const heads = head === null ? [...Array(this.heads).keys()] : [Math.min(head, this.heads - 1)];
    const from = query === ALL ? this.prefix : query, to = query === ALL ? this.tokens : query + 1;
    const weight = 1 / (heads.length * (to - from));
    for (const one of heads) for (let token = from; token < to; token++) this.addRow(out, layer, one, token, weight);
    return out;
  }

  /** The mean of all heads of a layer, tokens x tokens. */
  mean(layer) {
    if (!this.means[layer]) {
      const out = new Float32Array(this.tokens * this.tokens);
      for (let token = 0; token < this.tokens; token++) {
        const row = out.subarray(token * this.tokens, (token + 1) * this.tokens);
        for (let head = 0; head < this.heads; head++) this.addRow(row, layer, head, token, 1 / this.heads);
      }
      this.means[layer] = out;
    }
    return this.means[layer];
  }

  /** How much of each input token has come to a token after a layer: attention rollout, one row of it.
   *  A row of M_l ... M_1 is a row times a matrix, layer after layer from the last: never two matrices. */
  rolled(layer, token) {
    let row = new Float32Array(this.tokens);
    row[token] = 1;
    for (let one = layer; one >= 0; one--) {
      const mean = this.mean(one), count = this.tokens, next = new Float32Array(count);
      for (let from = 0; from < count; from++) {
        const share = row[from] / 2; // half comes by attention, half past it
        if (share === 0) continue;
        const start = from * count;
        for (let to = 0; to < count; to++) next[to] += share * mean[start + to];
        next[from] += share;
      }
      row = next;
    }
    return row;
  }

  /** What the head reads, rolled out by the server: it knows how the model pools. */
  rolledForHead(layer) {
    const out = new Float32Array(this.tokens), start = layer * this.patches;
    const scale = this.rollout.maximum[layer] / 255;
    for (let place = 0; place < this.patches; place++) out[this.prefix + place] = scale * this.rollout.data[start + place];
    return out;
  }

  /** How similar the features of every token are to those of a token: cosines. */
  alike(query) {
    const { data, scale } = this.similarity, count = this.tokens, out = new Float32Array(count);
    const from = query === ALL ? this.prefix : query, to = query === ALL ? count : query + 1;
    for (let token = from; token < to; token++)
      for (let place = 0; place < count; place++) out[place] += (scale * data[token * count + place]) / (to - from);
    return out;
  }

  /** The map of a view: values over patches, and what goes to the leading tokens. */
  map({ mode, layer, head, query }) {
    if (mode === "gradient") return { values: this.gradient, leading: new Float32Array(this.prefix) };
    let all;
    if (compares(mode)) all = this.alike(query);
    else if (mode === "rollout") all = query === ALL ? this.rolledForHead(layer) : this.rolled(layer, query);
    else all = this.looks(layer, mode === "head" && !this.averaged ? head : null, query);
    return { values: all.subarray(this.prefix), leading: all.subarray(0, this.prefix) };
  }

  /** How far away, in pixels, the patches are that a patch looks at; weighted, and not divided by what they get together:
   *  attention on leading tokens counts as no distance, as in the paper's figure 7. */
  distanceOf(values, patch) {
    const row = Math.floor(patch / this.columns), column = patch % this.columns;
    let sum = 0;
    for (let place = 0; place < this.patches; place++) {
      const down = (Math.floor(place / this.columns) - row) * this.step[0];
      const across = ((place % this.columns) - column) * this.step[1];
      sum += values[place] * Math.hypot(down, across);
    }
    return sum;
  }
}

/** Where the largest value is; `except` may be left out of it. */
export function highest(values, except = -1) {
  let place = except === 0 ? values.length - 1 : 0;
  for (let one = 0; one < values.length; one++) if (one !== except && values[one] > values[place]) place = one;
  return place;
}

/** The patch that a view points at: what a token looks at most; of patches compared, the most similar other one. */
export const peakOf = (values, { mode, query }, prefix) => highest(values, compares(mode) ? query - prefix : -1);

/** Values as shares of the colour scale, and what its ends stand for. `own`: from 0 to the map's largest value.
 *  `same`: one scale for every map, logarithmic because attention spans decades, from a tenth of an even share to 1.
 *  Cosines end at 1, and begin at the map's lowest value, or at 0. */
export function scaled(values, scale, patches, mode) {
  if (compares(mode)) {
    const low = scale === "same" ? 0 : Math.min(0.999, values.reduce((one, other) => Math.min(one, other), 1));
    return { shares: Float32Array.from(values, (value) => Math.max(0, (value - low) / (1 - low))), low, high: 1 };
  }
  if (scale === "same") {
    const low = Math.min(0.05, 0.1 / patches), span = -Math.log(low);
    return { shares: Float32Array.from(values, (value) => Math.max(0, Math.log(Math.max(value, low) / low) / span)), low, high: 1 };
  }
  const high = values[highest(values)] || 0;
  return { shares: Float32Array.from(values, (value) => (high > 0 ? Math.max(0, value) / high : 0)), low: 0, high };
}
