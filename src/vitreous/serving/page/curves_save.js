// A chart as a file: what is seen, with its title and its legend; and its numbers.
import { drawn, saved } from "./common.js";
import { title } from "./curves_words.js";

const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family"];

// Style sheets do not travel with a drawing, so that every element is given the colours it has here.
function standalone(chart) {
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--ink").trim(), card = style.getPropertyValue("--card").trim();
  const font = "system-ui, sans-serif", width = chart.width, high = Number(chart.svg.getAttribute("height"));
  const copy = chart.svg.cloneNode(true), originals = [...chart.svg.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((element, k) => {
    const seen = getComputedStyle(originals[k]);
    if (element.tagName !== "g") for (const name of PAINT) element.setAttribute(name, seen.getPropertyValue(name));
    for (const name of ["class", "data-run", "data-split"]) element.removeAttribute(name);
  });
  copy.lastElementChild.replaceChildren();  // no crosshair
  const top = 34, legend = chart.lines.map((line, k) => {
    const colour = getComputedStyle(chart.curves.querySelectorAll("path:not(.faint)")[k]).getPropertyValue("stroke"), y = top + high + 18 + 19 * k;
    const row = drawn("g");
    row.append(drawn("line", { x1: 16, x2: 36, y1: y - 4, y2: y - 4, stroke: colour, "stroke-width": line.split === "train" ? 1.4 : 3 }),
      drawn("text", { x: 44, y, fill: ink, "font-size": "13px", "font-family": font }, chart.called(line)));
    return row;
  });
  const height = top + high + 19 * chart.lines.length + 16;
  const whole = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  const inside = drawn("g", { transform: `translate(0 ${top})` });
  inside.append(...copy.children);
  whole.append(drawn("rect", { width, height, fill: card }), drawn("text", { x: 16, y: 22, fill: ink, "font-size": "15px", "font-weight": "600", "font-family": font }, title(chart.key)), inside, ...legend);
  return { text: new XMLSerializer().serializeToString(whole), width, height };
}

async function painted({ text, width, height }) {
  const image = new Image(), source = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    image.src = source;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, failed) => canvas.toBlob((blob) => blob ? done(blob) : failed(new Error("no image")), "image/png"));
  } finally {
    URL.revokeObjectURL(source);
  }
}

// A name that begins like a formula would be one for a spreadsheet.
function cell(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const words = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return /[",\n\r]/.test(words) ? '"' + words.replaceAll('"', '""') + '"' : words;
}

function asCsv(key, rows) {
  return [["run", "split", "step", "epoch", "seconds", key], ...rows].map((row) => row.map((one) => cell(one ?? NaN)).join(",")).join("\r\n") + "\r\n";
}

export async function save(chart, kind, rows) {
  const name = chart.key.replace(/[^\w-]+/g, "-").slice(0, 60) || "curve";
  if (kind === "CSV") saved(new Blob([asCsv(chart.key, rows)], { type: "text/csv;charset=utf-8" }), name + ".csv");
  else if (kind === "SVG") saved(new Blob([standalone(chart).text], { type: "image/svg+xml" }), name + ".svg");
  else saved(await painted(standalone(chart)), name + ".png");
}
