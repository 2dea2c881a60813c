// Numbers and names for people.

const TITLES = {
  loss: "Loss", top1: "Accuracy", top5: "Top-5 accuracy", lr: "Learning rate", images_per_second: "Images per second",
};

export const title = (key) => Object.hasOwn(TITLES, key) ? TITLES[key] : key.replaceAll("_", " ");
export const isShare = (key) => /^(top|fewshot_)\d+$/.test(key);

export function figure(value, key = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (isShare(key)) return (100 * value).toFixed(2) + " %";
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e9) return Math.round(value).toLocaleString("en");
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

// Whether an accuracy may be shown as a good one: what always predicting the largest class gets is nothing learnt.
export const beatsMajority = (share, majority) => !Number.isFinite(majority) || share > majority || share === 1;

export const whole = (value) => Number.isFinite(value) ? Math.round(value).toLocaleString("en") : "–";

export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const all = Math.round(seconds), hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60, rest = all % 60;
  if (hours >= 48) return Math.floor(hours / 24) + " d " + hours % 24 + " h";
  if (hours) return hours + " h " + minutes + " min";
  return minutes ? minutes + " min " + rest + " s" : seconds < 10 ? Number(seconds.toPrecision(2)) + " s" : rest + " s";
}

// Where on the horizontal axis: steps are whole, epochs are not, time is read as time.
export function place(value, along) {
  if (along === "seconds") return duration(value);
  return along + " " + (along === "step" ? whole(value) : Number(value.toPrecision(4)));
}

export function ago(moment) {
  const seconds = Date.now() / 1000 - moment;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min ago";
  if (seconds < 2 * 86400) return Math.floor(seconds / 3600) + " h ago";
  return new Date(moment * 1000).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
}
