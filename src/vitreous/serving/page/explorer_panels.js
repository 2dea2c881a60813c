// The panels beside the image: classes with bars, the heads of a layer, the strip of layers.

import { make } from "./common.js";
import { paint } from "./explorer_colours.js";
import { percent } from "./explorer_words.js";

/** Classes of one or two models: `answers` are {card, classes, probabilities}. */
export function showGuesses(parent, answers) {
  parent.replaceChildren(...answers.map(({ card, classes, probabilities }) => {
    const block = make("div", { class: "guesses" });
    if (answers.length > 1) block.append(make("h3", {}, card.name));
    if (!card.has_head) {
      block.append(make("p", { class: "quiet small" }, "This model has no head: it gives features and attention, and no classes."));
      return block;
    }
    block.append(make("ol", { class: "bars" }, ...classes.map((name, rank) => {
      const bar = make("span", { class: "bar" });
      bar.style.width = `${Math.max(0.4, 100 * probabilities[rank])}%`;
      const label = make("span", { class: "name" }, name), number = make("span", { class: "number" }, percent(probabilities[rank]));
      return make("li", { title: name }, label, number, make("span", { class: "rail", "aria-hidden": "true" }, bar));
    })));
    return block;
  }));
}

/** A radio group of small maps: the mean of the heads, then every head. Choosing calls `choose(head)`, null for the mean. */
export class Heads {
  constructor(parent, choose) {
    this.parent = parent;
    this.choose = choose;
    this.buttons = [];
    parent.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || !this.buttons.length) return;
      event.preventDefault();
      const count = this.buttons.length, next = (this.buttons.indexOf(document.activeElement) + step + count) % count;
      this.buttons[next].focus();
      this.buttons[next].click();
    });
  }

  build(numbers) {
    const heads = numbers.averaged ? [null] : [null, ...Array(numbers.heads).keys()];
    this.heads = heads;
    this.buttons = heads.map((head) => {
      const canvas = make("canvas", { width: numbers.columns, height: numbers.rows, "aria-hidden": "true" });
      canvas.style.aspectRatio = `${numbers.columns * numbers.step[1]} / ${numbers.rows * numbers.step[0]}`;
      const [short, name] = head === null ? ["mean", "Mean of heads"] : [head, `Head ${head}`];
      return make("button", { type: "button", role: "radio", "aria-label": name, on: { click: () => this.choose(head) } }, canvas, make("span", {}, short));
    });
    this.parent.replaceChildren(...this.buttons);
  }

  /** `shares(head)` gives the map of a head; `chosen` is the head, null for the mean, undefined for neither. */
  update(shares, chosen) {
    this.buttons.forEach((button, index) => {
      const canvas = button.firstChild, context = canvas.getContext("2d"), head = this.heads[index];
      context.putImageData(paint(shares(head), "heat", context.createImageData(canvas.width, canvas.height)), 0, 0);
      button.setAttribute("aria-checked", String(head === chosen));
      button.tabIndex = head === chosen || (chosen === undefined && index === 0) ? 0 : -1;
    });
  }
}

const CELL = 56, THUMB = 16; // pixels: the largest map of the strip; the handle of a slider, in most browsers

/** Small maps of every layer, each below its place on the slider; a click goes to that layer. */
export class Strip {
  constructor(canvas, slider, choose) {
    Object.assign(this, { canvas, slider, cell: document.createElement("canvas") });
    canvas.addEventListener("pointerdown", (event) => {
      const at = (event.clientX - canvas.getBoundingClientRect().left - this.size / 2) / (this.pitch || 1);
      choose(Math.min(this.layers - 1, Math.max(0, Math.round(at))));
    });
  }

  update(numbers, shares, chosen) {
    const { rows, columns, step, layers } = numbers, sharp = Math.min(2, devicePixelRatio || 1);
    const width = this.canvas.parentElement.clientWidth;
    this.layers = layers;
    this.size = Math.min(CELL, width / layers - 2);
    this.pitch = layers > 1 ? (width - this.size) / (layers - 1) : 0;
    const height = (this.size * rows * step[0]) / (columns * step[1]);
    this.slider.style.width = `${width - this.size + THUMB}px`;
    this.slider.style.marginLeft = `${(this.size - THUMB) / 2}px`;
    this.canvas.width = width * sharp;
    this.canvas.height = (height + 6) * sharp;
    const context = this.canvas.getContext("2d"), small = this.cell.getContext("2d");
    [this.cell.width, this.cell.height] = [columns, rows];
    context.scale(sharp, sharp);
    context.imageSmoothingEnabled = false;
    for (let layer = 0; layer < layers; layer++) {
      small.putImageData(paint(shares(layer), "heat", small.createImageData(columns, rows)), 0, 0);
      context.drawImage(this.cell, layer * this.pitch, 0, this.size, height);
    }
    context.fillStyle = getComputedStyle(this.canvas).color;
    context.fillRect(chosen * this.pitch, height + 2, this.size, 4);
  }
}
