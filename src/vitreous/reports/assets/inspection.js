// Layers one by one: the one small picture of all layers and heads, cut into tiles and laid over the image.
for (const box of document.querySelectorAll("details.heads")) {
  const { layers, heads, rows, columns } = Object.fromEntries(Object.entries(box.dataset).map(([key, value]) => [key, Number(value)]));
  const tiles = box.querySelector("img.tiles");
  const image = box.closest("article").querySelector("figure.view img");
  const name = box.closest("article").querySelector("h3").textContent;

  const tool = document.createElement("div");
  tool.className = "layers";
  const label = document.createElement("label");
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: layers - 1, value: layers - 1 });
  const said = document.createElement("output");
  label.append("layer, 0 to " + (layers - 1), slider, said);
  const grid = document.createElement("div");
  grid.className = "canvases";
  const canvases = Array.from({ length: heads }, (_, head) => {
    const figure = document.createElement("figure");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    const caption = document.createElement("figcaption");
    caption.textContent = "head " + head;
    figure.append(canvas, caption);
    grid.append(figure);
    return canvas;
  });
  tool.append(label, grid);
  box.querySelector("summary").after(tool);

  const draw = () => {
    const layer = Number(slider.value);
    said.textContent = "layer " + layer;
    canvases.forEach((canvas, head) => {
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      canvas.setAttribute("aria-label", name + ", layer " + layer + ", head " + head);
      const pen = canvas.getContext("2d");
      pen.globalCompositeOperation = "copy";
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      pen.globalCompositeOperation = "multiply";
      pen.drawImage(tiles, layer * (columns + 1), head * (rows + 1), columns, rows, 0, 0, canvas.width, canvas.height);
      pen.globalCompositeOperation = "lighter"; // a little of the whole picture, to know what is lit
      pen.globalAlpha = 0.2;
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      pen.globalAlpha = 1;
    });
  };
  slider.addEventListener("input", draw);
  box.addEventListener("toggle", async () => {
    if (!box.open) return;
    await Promise.all([tiles.decode(), image.decode()]);
    draw();
  });
}

// The map of the data: a point shows its image under the pointer, by touch, or by arrow keys.
for (const map of document.querySelectorAll(".map")) {
  const svg = map.querySelector("svg");
  const told = map.querySelector(".told");
  const sheet = map.querySelector("#thumbnails");
  const side = Number(sheet.dataset.side);
  const across = Number(sheet.dataset.across);
  const points = [...svg.querySelectorAll(".p")].map((group) => {
    const circle = group.querySelector("circle");
    const title = group.querySelector("title");
    const text = title.textContent;
    title.remove(); // the browser's own hint would lie over the thumbnail
    return { group, text, x: circle.cx.baseVal.value, y: circle.cy.baseVal.value, at: Number(group.dataset.at), own: group.dataset.class };
  });
  const view = svg.viewBox.baseVal;
  const thumbnail = document.createElement("canvas");
  thumbnail.className = "thumbnail";
  thumbnail.width = thumbnail.height = 96;
  thumbnail.hidden = true;
  map.append(thumbnail);
  let here = null;

  const show = (point) => {
    if (here) here.group.classList.remove("here");
    here = point;
    thumbnail.hidden = !point;
    told.textContent = point ? point.text : "";
    if (!point) return;
    point.group.classList.add("here");
    svg.append(point.group); // on top of the others
    const pen = thumbnail.getContext("2d");
    pen.imageSmoothingEnabled = true;
    pen.drawImage(sheet, (point.at % across) * side, Math.floor(point.at / across) * side, side, side, 0, 0, 96, 96);
    const scale = svg.clientWidth / view.width;
    const [x, y] = [point.x * scale, point.y * scale];
    thumbnail.style.left = Math.min(svg.clientWidth - 100, Math.max(0, x > svg.clientWidth / 2 ? x - 112 : x + 12)) + "px";
    thumbnail.style.top = Math.max(0, y > svg.clientHeight / 2 ? y - 112 : y + 12) + "px";
  };
  const visible = () => points.filter((point) => !point.group.classList.contains("away"));
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * (view.width / box.width);
    const y = (event.clientY - box.top) * (view.height / box.height);
    let best = null;
    let least = (event.pointerType === "mouse" ? 14 : 30) ** 2;
    for (const point of visible()) {
      const apart = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (apart < least) [best, least] = [point, apart];
    }
    return best;
  };
  svg.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") show(nearest(event)); });
  svg.addEventListener("click", (event) => show(nearest(event)));
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(null); });

  map.tabIndex = 0;
  map.setAttribute("role", "group");
  map.setAttribute("aria-label", svg.getAttribute("aria-label") + ". Arrow keys go from point to point.");
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  map.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return show(null);
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const among = visible();
    if (!here || !among.includes(here)) return show(among[0] || null);
    // The nearest in that direction: what lies aside counts double.
    let best = null;
    let least = Infinity;
    for (const point of among) {
      const ahead = (point.x - here.x) * step[0] + (point.y - here.y) * step[1];
      const aside = Math.abs((point.x - here.x) * step[1]) + Math.abs((point.y - here.y) * step[0]);
      if (point !== here && ahead > 0 && aside <= 2 * ahead && ahead + 2 * aside < least) [best, least] = [point, ahead + 2 * aside];
    }
    if (best) show(best);
  });
  map.addEventListener("blur", () => show(null));

  for (const row of map.parentElement.querySelectorAll("ul.legend li[data-class]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(...row.childNodes);
    row.append(button);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      for (const point of points) if (point.own === row.dataset.class) point.group.classList.toggle("away", !on);
      if (here && here.group.classList.contains("away")) show(null);
    });
  }
}
