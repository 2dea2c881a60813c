// From an image and a model to everything the page shows of them.

import * as api from "./explorer_api.js";
import { Numbers } from "./explorer_numbers.js";

// Answers are kept, so that going back to a model or to the other of two images asks for nothing: so many, and no more than
// so many bytes beyond the two that are compared.
const KEPT = 6, BYTES = 96 * 2 ** 20;

const answers = new Map();

async function decoded(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

/** What the browser itself can show of an image that no attention goes with. */
async function plain(blob) {
  try {
    return await createImageBitmap(blob);
  } catch {
    const blank = document.createElement("canvas");
    [blank.width, blank.height] = [4, 3];
    return blank;
  }
}

async function guessed(card, blob, why, options) {
  const answer = card.has_head ? await api.predict(card.name, blob, options) : { classes: [], probabilities: [] };
  return { card, image: await plain(blob), numbers: null, why, classes: answer.classes, probabilities: answer.probabilities };
}

async function looked(card, blob, options) {
  if (!card.has_attention)
    return guessed(card, blob, `${card.model} is a convolutional network: it has no attention to look at, so there is its prediction alone.`, options);
  let answer;
  try {
    answer = await api.attention(card.name, blob, options);
  } catch (error) {
    if (error.status !== 422 || !card.has_head) throw error;
    return guessed(card, blob, [error.message, error.hint].filter(Boolean).join(" "), options); // says it again if it was the image
  }
  const image = await decoded(answer.picture);
  return { card, image, numbers: new Numbers(answer, card), why: "", classes: answer.classes, probabilities: answer.probabilities };
}

/** `subject` is {id, blob}. */
export async function answered(card, subject, options) {
  const key = `${subject.id} ${card.name}`;
  const found = answers.get(key) ?? (await looked(card, subject.blob, options));
  answers.delete(key);
  answers.set(key, found); // the latest last
  const held = () => [...answers.values()].reduce((sum, one) => sum + (one.numbers?.size ?? 0), 0);
  while (answers.size > KEPT || (answers.size > 2 && held() > BYTES)) answers.delete(answers.keys().next().value);
  return found;
}
