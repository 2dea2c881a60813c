// Playing through the layers.

import { main, state } from "./explorer_state.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Player {
  /** `choose(layer)` is called for one layer after another while the button is pressed. */
  constructor(button, choose) {
    Object.assign(this, { button, choose, timer: 0 });
    button.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.button.setAttribute("aria-pressed", "false");
  }

  start() {
    if (!main()) return;
    this.button.setAttribute("aria-pressed", "true");
    if (state.layer + 1 >= main().layers) this.choose(0);
    this.timer = setInterval(() => this.next(), calm.matches ? 1500 : 500);
  }

  next() {
    if (!main() || state.mode === "gradient") return this.stop(); // another model came, or a map that has no layers
    const last = state.layer + 1 >= main().layers;
    if (last && calm.matches) return this.stop(); // once, and slowly, for people whom motion disturbs
    this.choose(last ? 0 : state.layer + 1);
  }
}
