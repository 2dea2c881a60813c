// A view as the fragment of an address, and back. A fragment may come from anybody: nothing in it is believed before it
// is compared with what there is.

const LONGEST = 400_000; // characters; browsers take more, but no link of this page has so many

const MODES = ["head", "mean", "rollout", "gradient", "similar", "colours"];
const SCALES = ["own", "same"];

function whole(text, low, high) {
  if (!/^\d{1,6}$/.test(text ?? "")) return undefined;
  const number = Number(text);
  return number >= low && number <= high ? number : undefined;
}

/** The fragment of a view. Numbers are those on the page: layers and heads from 0, rows, columns and tokens from 1. */
export function written(view) {
  const fields = new URLSearchParams();
  fields.set("model", view.model);
  if (view.second) fields.set("with", view.second);
  fields.set("layer", view.layer);
  fields.set("head", view.head);
  fields.set("mode", view.mode);
  if (view.query.kind === "patch") fields.set("patch", `${view.query.row + 1}.${view.query.column + 1}`);
  else fields.set("token", view.query.kind === "all" ? "all" : view.query.index + 1);
  if (view.scale !== "own") fields.set("scale", view.scale);
  if (view.example) fields.set("example", view.example);
  if (view.image) fields.set("image", view.image);
  return fields.toString();
}

/** What a fragment asks for, as far as it makes sense; what does not is left out. `known` tells models and examples. */
export function read(fragment, known) {
  const text = fragment.replace(/^#/, "");
  if (!text.includes("=") || text.length > LONGEST) return null;
  const fields = new URLSearchParams(text);
  const oneOf = (key, choices) => (choices.includes(fields.get(key)) ? fields.get(key) : undefined);
  const number = (key, low) => whole(fields.get(key), low, 10_000);
  const view = {
    model: oneOf("model", known.models),
    second: oneOf("with", known.models),
    layer: number("layer", 0),
    head: number("head", 0),
    mode: oneOf("mode", MODES),
    scale: oneOf("scale", SCALES) ?? "own",
    example: oneOf("example", known.examples),
    image: imageIn(fields.get("image")),
  };
  const patch = /^(\d{1,5})\.(\d{1,5})$/.exec(fields.get("patch") ?? "");
  if (patch && Number(patch[1]) && Number(patch[2])) view.query = { kind: "patch", row: patch[1] - 1, column: patch[2] - 1 };
  else if (fields.get("token") === "all") view.query = { kind: "all" };
  else if (number("token", 1)) view.query = { kind: "token", index: number("token", 1) - 1 };
  return view;
}

/** The JPEG in a link, as a blob; undefined for anything else. */
function imageIn(text) {
  if (!text || !/^[A-Za-z0-9_-]+$/.test(text)) return undefined;
  try {
    const content = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(content, (letter) => letter.charCodeAt(0));
    return bytes[0] === 0xff && bytes[1] === 0xd8 && bytes[2] === 0xff ? new Blob([bytes], { type: "image/jpeg" }) : undefined;
  } catch {
    return undefined;
  }
}

/** Bytes as the letters that an address may hold. */
export async function lettered(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
