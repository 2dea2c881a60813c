// Talking to the server. What goes wrong is told in its own words.

const PATIENCE = 8; // times that a busy server is asked again

/** Something to tell the person: what happened, and what to do about it. */
export class Told extends Error {
  constructor(error, hint = "", status = 0) {
    super(error);
    this.hint = hint;
    this.status = status;
  }

  /** Whether asking again would give the same answer. */
  get refused() {
    return this.status >= 400 && this.status < 500 && this.status !== 429;
  }
}

function waited(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

async function sent(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (navigator.onLine === false) throw new Told("This device is offline.", "Connect it and try again.");
    throw new Told("The server does not answer.", "Look whether “vitreous serve” is still running, then try again.");
  }
}

async function told(response) {
  let fields = {};
  try {
    fields = await response.json();
  } catch {
    // an answer from something between the page and the server
  }
  const words = typeof fields.error === "string" ? fields.error : `The server answered ${response.status} ${response.statusText}`;
  return new Told(words, typeof fields.hint === "string" ? fields.hint : "", response.status);
}

/** The JSON at a path. A busy server (429, 503) is asked again when it says; `onWait(seconds)` is told of it. */
async function asked(path, { signal, onWait, ...options } = {}) {
  for (let turn = 0; ; turn++) {
    const response = await sent(path, { ...options, signal });
    if (response.ok) {
      try {
        return await response.json();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Told("The answer broke off.", "Try again.");
      }
    }
    const busy = response.status === 503 || response.status === 429;
    if (!busy || turn >= PATIENCE) throw await told(response);
    const seconds = Math.min(30, Math.max(1, Number(response.headers.get("Retry-After")) || 1));
    onWait?.(seconds);
    await waited(seconds, signal);
  }
}

function upload(path, model, blob, options, more = {}) {
  const body = new FormData();
  body.append("file", blob, "image");
  return asked(`${path}?${new URLSearchParams({ model, ...more })}`, { method: "POST", body, ...options });
}

export const models = () => asked("/models");
export const attention = (model, blob, options) => upload("/attention", model, blob, options);
export const predict = (model, blob, options) => upload("/predict", model, blob, options, { top: "5" });

const tables = new Map();

/** Similarity of positions, once for each model; what is known to be missing is not asked for again. */
export function positions(model) {
  if (!tables.has(model)) {
    const answer = asked(`/models/${encodeURIComponent(model)}/positions`);
    answer.catch((error) => {
      if (error.status !== 404) tables.delete(model);
    });
    tables.set(model, answer);
  }
  return tables.get(model);
}

export async function example(url, signal) {
  const response = await sent(url, { signal });
  if (!response.ok) throw await told(response);
  return response.blob();
}
