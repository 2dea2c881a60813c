"use strict";

// Values under the pointer. Everything is written as text, never as markup: the names are untrusted input.
const SVG = "http://www.w3.org/2000/svg";

function shown(value, percent) {
  if (percent) return (100 * value).toFixed(2) + " %";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

function nearest(points, step) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= step) low = middle; else high = middle;
  }
  return step - points[low][0] <= points[high][0] - step ? points[low] : points[high];
}

for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart);
  const [x0, x1] = chart.x, [y0, y1] = chart.y;
  const across = (step) => chart.left + (chart.right - chart.left) * (step - x0) / (x1 - x0);
  const up = (value) => chart.bottom - (chart.bottom - chart.top) *
    (chart.log ? Math.log(value / y0) / Math.log(y1 / y0) : (value - y0) / (y1 - y0));
  const reading = document.createElement("div");
  const marks = document.createElementNS(SVG, "g");
  reading.className = "reading";
  reading.hidden = true;
  svg.after(reading);
  svg.append(marks);

  const read = (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const wanted = x0 + (x1 - x0) * (at - chart.left) / (chart.right - chart.left);
    const series = chart.series.filter((one) => one.points.length);
    // The curve with the closest point decides the step; the others say what they have nearest to it.
    const step = series.map((one) => nearest(one.points, wanted)[0])
      .reduce((best, other) => Math.abs(other - wanted) < Math.abs(best - wanted) ? other : best);
    marks.replaceChildren();
    const head = document.createElement("div");
    head.textContent = chart.along + " " + step.toLocaleString("en");
    reading.replaceChildren(head);
    const line = document.createElementNS(SVG, "line");
    const ends = { x1: across(step), x2: across(step), y1: chart.top, y2: chart.bottom, class: "cursor" };
    for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
    marks.append(line);
    for (const one of series) {
      const [where, value] = nearest(one.points, step);
      const dot = document.createElementNS(SVG, "circle");
      const about = { cx: across(where), cy: up(value), r: 3.5, class: "c" + one.colour };
      for (const [name, number] of Object.entries(about)) dot.setAttribute(name, number);
      marks.append(dot);
      const row = document.createElement("div"), swatch = document.createElement("i");
      swatch.className = "s" + one.colour;
      const late = where === step ? "" : " (" + chart.along + " " + where.toLocaleString("en") + ")";
      row.append(swatch, one.name + " " + shown(value, chart.percent) + late);
      reading.append(row);
    }
    reading.hidden = false;
    const frame = svg.parentElement.getBoundingClientRect();
    const left = event.clientX - frame.left + 14;
    const room = frame.width - reading.offsetWidth - 4;
    reading.style.left = Math.max(4, left > room ? left - reading.offsetWidth - 28 : left) + "px";
    reading.style.top = (box.top - frame.top + 8) + "px";
  };
  const leave = () => { reading.hidden = true; marks.replaceChildren(); };
  svg.addEventListener("pointermove", read);
  svg.addEventListener("pointerdown", read);
  // A finger leaves when it is lifted; what it has asked for stays until it taps elsewhere.
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
  document.addEventListener("pointerdown", (event) => { if (!svg.contains(event.target)) leave(); });
}

// Tables that sort by a click on a heading.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const body = table.tBodies[0];
      const key = (row) => head.dataset.sort === "number" ? Number(row.cells[column].dataset.value) : row.cells[column].textContent;
      const order = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort((a, b) => rising ? order(a[0], b[0]) : order(b[0], a[0]));
      body.append(...rows.map((pair) => pair[1]));
    });
  });
}
