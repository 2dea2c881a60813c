// What the scripts of both pages share: elements, round numbers, and files to take away.

/** An element with attributes and what is inside. Strings become text, never markup: names of classes, models and runs come
 *  from untrusted sources. `on` holds listeners. */
export function make(tag, about = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inside.filter((one) => one !== null && one !== undefined));
  return element;
}

/** The same for parts of a drawing. */
export function drawn(tag, about = {}, words = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(about)) element.setAttribute(name, value);
  if (words !== null) element.textContent = words;
  return element;
}

/** The smallest round number that is not below `rough`: how far apart the marks of an axis are. */
export function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((digit) => digit * power).find((size) => size >= rough * 0.999);
}

/** Let the browser save a blob as a file. */
export function saved(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link); // Firefox does not follow a link that is nowhere
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
