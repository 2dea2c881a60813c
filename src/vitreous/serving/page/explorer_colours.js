// Colour maps, mixed here so that equal steps in value look like equal steps: lightness rises evenly in OKLab, the hue
// turns with it, and the chroma is as strong as a screen can show at that lightness, up to a limit.

const LEVELS = 256;

// hue in degrees at the dark and at the light end; lightness at both; most chroma
const KINDS = {
  heat: { hue: [-65, 100], light: [0.13, 0.97], chroma: 0.19 },
  likeness: { hue: [295, 105], light: [0.2, 0.95], chroma: 0.15 },
};

function linear(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue), b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

const shown = (channels) => channels.every((value) => value >= -1e-4 && value <= 1 + 1e-4);
const gamma = (value) => 255 * (value <= 0.0031308 ? 12.92 * value : 1.055 * Math.max(value, 0) ** (1 / 2.4) - 0.055);

function mixed({ hue, light, chroma }) {
  const table = new Uint8ClampedArray(LEVELS * 3);
  for (let level = 0; level < LEVELS; level++) {
    const share = level / (LEVELS - 1);
    const lightness = light[0] + share * (light[1] - light[0]);
    const angle = ((hue[0] + share * (hue[1] - hue[0])) * Math.PI) / 180;
    let low = 0, high = chroma * Math.min(1, 0.25 + 4 * share); // the darkest end stays near black
    if (!shown(linear(lightness, high, angle))) {
      for (let turn = 0; turn < 12; turn++) {
        const middle = (low + high) / 2;
        if (shown(linear(lightness, middle, angle))) low = middle;
        else high = middle;
      }
      high = low;
    }
    linear(lightness, high, angle).forEach((value, channel) => (table[level * 3 + channel] = gamma(value)));
  }
  return table;
}

const tables = {};

/** 256 colours, red green blue one after another. */
function palette(kind) {
  return (tables[kind] ??= mixed(KINDS[kind]));
}

/** Numbers from 0 to 1 as pixels of an ImageData. With a strength below 1 they let through what lies behind, low ones more
 *  than high ones: an image stays in sight where nothing happens. */
export function paint(shares, kind, image, strength = 1) {
  const table = palette(kind), pixels = image.data;
  for (let place = 0; place < shares.length; place++) {
    const share = Math.max(0, Math.min(1, shares[place])), level = 3 * Math.round(share * (LEVELS - 1));
    pixels[4 * place] = table[level];
    pixels[4 * place + 1] = table[level + 1];
    pixels[4 * place + 2] = table[level + 2];
    pixels[4 * place + 3] = 255 * strength ** (2 - 1.5 * share);
  }
  return image;
}

/** Red, green and blue of every place as pixels of an ImageData; with a strength below 1 they let through what lies behind. */
export function paintColours(colours, image, strength = 1) {
  for (let place = 0; place < colours.length / 3; place++) {
    image.data.set(colours.subarray(3 * place, 3 * place + 3), 4 * place);
    image.data[4 * place + 3] = 255 * strength;
  }
  return image;
}

/** The colours from low to high, across a canvas. */
export function paintLegend(canvas, kind) {
  canvas.width = LEVELS;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const ramp = Float32Array.from({ length: LEVELS }, (_, level) => level / (LEVELS - 1));
  context.putImageData(paint(ramp, kind, context.createImageData(LEVELS, 1)), 0, 0);
}
