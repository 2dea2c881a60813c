// One model's image with the map over it, and the tokens that look: patches by pointer or arrow keys, others by button.

import { make } from "./common.js";
import { ALL } from "./explorer_numbers.js";
import { paint, paintColours } from "./explorer_colours.js";
import { counted } from "./explorer_words.js";

const PIXELATED = 96; // pixels up to which an image is enlarged without blur

export class Stage {
  /** `look(query, held)` is called when another token is to look: {y, x} from 0 to 1 on the image, or {token}.
   *  `held(stage)` tells the token that looks, also when it is not yet drawn: keys may come faster than frames. */
  constructor(parent, { look, layer, held }) {
    this.look = look;
    this.changeLayer = layer;
    this.held = held;
    this.element = document.createElement("figure");
    this.element.className = "view";
    this.element.innerHTML = `
      <figcaption><strong></strong> <span class="quiet small"></span></figcaption>
      <div class="frame" tabindex="0" role="application"><canvas></canvas></div>
      <div class="tokens" role="group" aria-label="Tokens that look, other than patches"></div>`;
    this.title = this.element.querySelector("strong");
    this.facts = this.element.querySelector("figcaption span");
    this.frame = this.element.querySelector(".frame");
    this.canvas = this.element.querySelector("canvas");
    this.tokens = this.element.querySelector(".tokens");
    this.image = null;
    this.numbers = null;
    this.heat = document.createElement("canvas");
    this.listen();
    parent.append(this.element);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.frame);
  }

  remove() {
    this.observer.disconnect();
    this.element.remove();
  }

  /** A model, its image (something that can be drawn) and its numbers; without numbers, the image alone. */
  show(card, image, numbers) {
    this.card = card;
    this.image = image;
    this.numbers = numbers;
    this.shares = null;
    this.title.textContent = this.title.title = card.name;
    const sizes = numbers ? `${numbers.rows} × ${numbers.columns} patches · ${counted(card.layers, "layer")} · ${counted(card.heads, "head")}` : "";
    this.facts.textContent = [card.model === card.name ? "" : card.model, sizes].filter(Boolean).join(" · ");
    const [height, width] = numbers ? card.image_size : [image.height, image.width];
    this.frame.style.aspectRatio = `${width} / ${height}`;
    this.frame.style.maxWidth = `${(82 * width) / height}vh`; // all of it is in sight at once
    this.frame.tabIndex = numbers ? 0 : -1;
    this.frame.classList.toggle("plain", !numbers);
    this.frame.setAttribute("role", numbers ? "application" : "img");
    const grid = numbers ? `${numbers.rows} rows and ${numbers.columns} columns of patches. Arrow keys choose a patch.` : "";
    this.frame.setAttribute("aria-label", `What ${card.name} saw${grid ? `: ${grid}` : ""}`);
    if (numbers) [this.heat.width, this.heat.height] = [numbers.columns, numbers.rows];
    this.buttons();
    this.draw();
  }

  buttons() {
    const named = this.numbers ? (this.card.leading ?? []).slice(0, this.numbers.prefix) : [];
    const wanted = named.map((name, token) => [name, token]);
    if (this.numbers && this.card.pool !== "token") wanted.push(["all patches", ALL]);
    this.tokens.replaceChildren(...wanted.map(([name, token]) => {
      const words = name[0].toUpperCase() + name.slice(1);
      return make("button", { type: "button", "data-token": token, on: { click: () => this.look({ token }, true) } }, words);
    }));
    this.tokens.hidden = !wanted.length;
  }

  /** Draw a map: `shares` of the scale of this `kind` for every patch, or `colours` of their own; `token` looks, `peak` is the
   *  patch that it looks at most. */
  update({ shares, kind, colours, token, peak, strength }) {
    Object.assign(this, { shares, token, peak });
    const context = this.heat.getContext("2d"), image = context.createImageData(this.heat.width, this.heat.height);
    context.putImageData(colours ? paintColours(colours, image, strength) : paint(shares, kind, image, strength), 0, 0);
    for (const button of this.tokens.children) button.setAttribute("aria-pressed", Number(button.dataset.token) === token);
    this.draw();
  }

  draw() {
    const box = this.frame.getBoundingClientRect(), sharp = Math.min(2, devicePixelRatio || 1);
    if (!this.image || !box.width) return;
    const width = Math.round(box.width * sharp), height = Math.round(box.height * sharp);
    if (this.canvas.width !== width || this.canvas.height !== height) [this.canvas.width, this.canvas.height] = [width, height];
    this.compose(this.canvas.getContext("2d"), width, height, sharp);
  }

  /** The image, the map and the marks, at any size. */
  compose(context, width, height, sharp) {
    context.imageSmoothingEnabled = Math.max(this.image.width, this.image.height) > PIXELATED;
    context.drawImage(this.image, 0, 0, width, height);
    if (!this.numbers || !this.shares) return;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.heat, 0, 0, width, height);
    this.mark(context, this.peak, width, height, sharp, true);
    if (this.token >= this.numbers.prefix) this.mark(context, this.token - this.numbers.prefix, width, height, sharp, false);
  }

  /** A frame around a patch, light on dark so that it shows on any colour: whole for the one that looks, dashed for the one
   *  that is looked at most. */
  mark(context, patch, width, height, sharp, dashed) {
    const { rows, columns } = this.numbers;
    const across = width / columns, down = height / rows;
    const x = (patch % columns) * across, y = Math.floor(patch / columns) * down;
    for (const [colour, line] of [["rgba(0,0,0,.75)", 4], ["white", 2]]) {
      context.lineWidth = line * sharp;
      context.strokeStyle = colour;
      context.setLineDash(dashed ? [3 * sharp, 3 * sharp] : []);
      context.strokeRect(x, y, across, down);
    }
    context.setLineDash([]);
  }

  place(event) {
    const box = this.frame.getBoundingClientRect();
    const inside = (value) => Math.min(0.999999, Math.max(0, value));
    return { y: inside((event.clientY - box.top) / box.height), x: inside((event.clientX - box.left) / box.width) };
  }

  listen() {
    this.frame.addEventListener("pointermove", (event) => {
      if (this.numbers) this.look(this.place(event), event.pointerType !== "mouse"); // a finger has no way to hover
    });
    this.frame.addEventListener("pointerleave", (event) => {
      if (this.numbers && event.pointerType === "mouse") this.look(null, false);
    });
    this.frame.addEventListener("click", (event) => {
      if (this.numbers) this.look(this.place(event), true);
    });
    this.frame.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (!this.numbers || event.ctrlKey || event.altKey || event.metaKey) return;
    const { rows, columns, prefix } = this.numbers;
    const token = this.held(this), known = token >= prefix; // the first key goes to the middle of the image
    const patch = known ? token - prefix : Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    let row = Math.floor(patch / columns), column = patch % columns;
    if (event.key === "ArrowUp") row -= Number(known);
    else if (event.key === "ArrowDown") row += Number(known);
    else if (event.key === "ArrowLeft") column -= Number(known);
    else if (event.key === "ArrowRight") column += Number(known);
    else if (event.key === "Home") column = 0;
    else if (event.key === "End") column = columns - 1;
    else if (event.key === "," || event.key === ".") this.changeLayer(event.key === "." ? 1 : -1);
    else return;
    event.preventDefault();
    if (event.key === "," || event.key === ".") return;
    row = Math.min(rows - 1, Math.max(0, row));
    column = Math.min(columns - 1, Math.max(0, column));
    this.look({ y: (row + 0.5) / rows, x: (column + 0.5) / columns }, true);
  }
}
