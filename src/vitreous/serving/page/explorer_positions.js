// How alike position embeddings are: the chosen patch's with all others, and the paper's figure 7 (centre), a tile for each.

import { paint } from "./explorer_colours.js";
import { bytes } from "./explorer_numbers.js";
import { short } from "./explorer_words.js";

const TILED = 20; // rows and columns up to which all tiles are shown: more are too small to see

export class Positions {
  /** `choose(row, column)` of a tile that is clicked. */
  constructor(one, all, told, choose) {
    Object.assign(this, { one, all, told, table: null });
    all.addEventListener("click", (event) => {
      if (!this.table) return;
      const box = all.getBoundingClientRect();
      const within = (value, count) => Math.min(count - 1, Math.max(0, Math.floor(value * count)));
      choose(
        (within((event.clientY - box.top) / box.height, this.rows) + 0.5) / this.rows,
        (within((event.clientX - box.left) / box.width, this.columns) + 0.5) / this.columns,
      );
    });
  }

  /** No table: say why. */
  missing(words) {
    this.table = null;
    this.one.hidden = this.all.hidden = true;
    this.told.textContent = words;
  }

  build(answer) {
    [this.rows, this.columns] = answer.grid;
    this.scale = answer.similarity.scale;
    this.table = new Int8Array(bytes(answer.similarity.data).buffer);
    [this.one.width, this.one.height] = [this.columns, this.rows];
    this.one.hidden = false;
    this.one.style.width = `${8 * Math.min(1, this.columns / this.rows)}rem`;
    this.all.hidden = Math.max(this.rows, this.columns) > TILED || this.rows * this.columns === 1;
    this.shown = null;
    if (!this.all.hidden) this.tiles();
  }

  shares(patch) {
    const count = this.rows * this.columns, out = new Float32Array(count);
    for (let place = 0; place < count; place++) out[place] = (this.table[patch * count + place] * this.scale + 1) / 2;
    return out;
  }

  tiles() {
    const [rows, columns] = [this.rows, this.columns];
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    [canvas.width, canvas.height] = [columns * (columns + 1) - 1, rows * (rows + 1) - 1];
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        const image = paint(this.shares(row * columns + column), "likeness", context.createImageData(columns, rows));
        context.putImageData(image, column * (columns + 1), row * (rows + 1));
      }
    this.plain = canvas;
  }

  /** Show a position, by its place from 0 to 1 on the image; null: none is chosen, and the middle one stands in. */
  update(place) {
    if (!this.table) return;
    const row = Math.floor((place?.y ?? 0.5) * this.rows), column = Math.floor((place?.x ?? 0.5) * this.columns);
    const patch = row * this.columns + column;
    if (patch === this.shown) return;
    this.shown = patch;
    const context = this.one.getContext("2d"), shares = this.shares(patch);
    context.putImageData(paint(shares, "likeness", context.createImageData(this.columns, this.rows)), 0, 0);
    const others = shares.filter((_, other) => other !== patch).map((share) => 2 * share - 1);
    const range = others.length ? `, to others ${short(Math.min(...others))} to ${short(Math.max(...others))}` : "";
    this.told.textContent = `Cosine similarity of position row ${row + 1} column ${column + 1} to itself 1${range}.`;
    if (!this.all.hidden) this.outline(row, column);
  }

  outline(row, column) {
    const enlarged = Math.ceil(900 / this.plain.width), context = this.all.getContext("2d"); // more than it has room for: no blur
    [this.all.width, this.all.height] = [this.plain.width * enlarged, this.plain.height * enlarged];
    context.imageSmoothingEnabled = false;
    context.drawImage(this.plain, 0, 0, this.all.width, this.all.height);
    const [x, y] = [column * (this.columns + 1), row * (this.rows + 1)].map((value) => value * enlarged);
    for (const [colour, line] of [["rgba(0,0,0,.8)", 10], ["white", 5]]) {
      context.lineWidth = line;
      context.strokeStyle = colour;
      context.strokeRect(x, y, this.columns * enlarged, this.rows * enlarged);
    }
  }
}
