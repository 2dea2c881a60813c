// Taking a view away: as an image, as words on the clipboard.

import { paintLegend } from "./explorer_colours.js";

const SIDE = 800, MARGIN = 24, LINE = 26;

/** The views side by side with a line on each, and the colour scale, as a PNG. `views` are {stage, words}. */
export function composite(views, scale) {
  const sizes = views.map(({ stage }) => {
    const box = stage.frame.getBoundingClientRect();
    return [SIDE, Math.round((SIDE * box.height) / box.width)];
  });
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  const tallest = Math.max(...sizes.map(([, height]) => height));
  canvas.width = views.length * (SIDE + MARGIN) + MARGIN;
  canvas.height = tallest + 2 * MARGIN + 3 * LINE;
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  views.forEach(({ stage, words }, index) => {
    const [width, height] = sizes[index], left = MARGIN + index * (SIDE + MARGIN);
    context.save();
    context.translate(left, MARGIN);
    context.beginPath();
    context.rect(0, 0, width, height);
    context.clip();
    stage.compose(context, width, height, 2);
    context.restore();
    context.fillStyle = "#1d2129";
    context.font = "600 20px system-ui, sans-serif";
    context.fillText(words[0], left, MARGIN + height + LINE, width);
    context.font = "18px system-ui, sans-serif";
    context.fillText(words[1], left, MARGIN + height + 2 * LINE, width);
  });
  if (scale) {
    const legend = document.createElement("canvas");
    paintLegend(legend, scale.kind);
    const top = canvas.height - MARGIN - 8;
    context.drawImage(legend, MARGIN + 70, top, 240, 14);
    context.font = "15px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText(scale.low, MARGIN + 64, top + 13);
    context.textAlign = "left";
    context.fillText(scale.high, MARGIN + 316, top + 13);
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Put words on the clipboard; false where the browser does not let us. */
export async function copied(words) {
  try {
    await navigator.clipboard.writeText(words);
    return true;
  } catch {
    // an address without https has no clipboard of the modern kind
  }
  const field = document.createElement("textarea");
  field.value = words;
  field.className = "heard";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
