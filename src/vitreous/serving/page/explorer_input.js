// Where images come from: a file, a drop anywhere on the page, the clipboard, the camera.

const LARGE = 19e6, LONG = 4096; // bytes and pixels from which an image is made smaller before it is sent
const SMALLER = 2048;
const LINKED = 256, LETTERS = 24_000; // pixels and characters of an image in a link

function canvasOf(source, width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width));
  canvas.height = Math.max(1, Math.round(height));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // see-through parts lie over white, as the server lays them
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(source, 0, 0, canvas.width, canvas.height);
  return canvas;
}

const jpeg = (canvas, quality) => new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", quality));

/** An image that this browser can decode, or null: the server may know more kinds. */
async function bitmap(blob) {
  try {
    return await createImageBitmap(blob);
  } catch {
    return null;
  }
}

/** The same image, small enough to send. */
export async function sendable(blob) {
  const found = await bitmap(blob);
  if (!found) return blob;
  const longest = Math.max(found.width, found.height);
  if (blob.size <= LARGE && longest <= LONG) {
    found.close();
    return blob;
  }
  const share = Math.min(1, SMALLER / longest);
  const made = await jpeg(canvasOf(found, found.width * share, found.height * share), 0.92);
  found.close();
  return made ?? blob;
}

/** A small JPEG for a link. The whole image, not the part that the model saw: the model prepares it again, and would
 *  cut from what is cut already. Only where the browser cannot read it, `instead` must do: what the model saw. */
export async function linkable(blob, instead) {
  const found = (await bitmap(blob)) ?? instead;
  if (!found) return null;
  const longest = Math.max(found.width, found.height);
  let made = null;
  for (const [side, quality] of [[LINKED, 0.85], [LINKED, 0.7], [192, 0.6], [128, 0.5]]) {
    const share = Math.min(1, side / longest);
    made = await jpeg(canvasOf(found, found.width * share, found.height * share), quality);
    if (made && made.size * 4 <= LETTERS * 3) break;
  }
  found.close?.();
  return made;
}

const firstImage = (files) => [...files].find((file) => file.type.startsWith("image/")) ?? [...files][0];

/** Calls `take(blob, name)` for every image, `tell(words)` where there is none, and `over(true or false)` while something
 *  is held above the page. */
export function listen({ take, tell, over }) {
  const file = document.getElementById("file");
  document.getElementById("choose").addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    if (file.files.length) take(file.files[0], file.files[0].name);
    file.value = ""; // so that the same file can be chosen again
  });

  let depth = 0; // of elements entered: leave and enter come in pairs at every border
  const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragenter", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    depth += 1;
    over(true);
  });
  addEventListener("dragleave", (event) => {
    if (carries(event) && (depth = Math.max(0, depth - 1)) === 0) over(false);
  });
  addEventListener("dragover", (event) => carries(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    depth = 0;
    over(false);
    const found = firstImage(event.dataTransfer.files);
    if (found) take(found, found.name);
  });

  addEventListener("paste", (event) => {
    const found = firstImage(event.clipboardData?.files ?? []);
    if (found) take(found, "pasted image");
  });
  const paste = document.getElementById("paste");
  paste.hidden = !navigator.clipboard?.read;
  paste.addEventListener("click", async () => {
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((one) => one.startsWith("image/"));
        if (type) return take(await item.getType(type), "pasted image");
      }
      tell("There is no image on the clipboard. Copy one, then paste again.");
    } catch {
      tell("The browser did not let this page read the clipboard. Press Ctrl+V (or ⌘V) instead.");
    }
  });
  camera(take, tell);
}

function camera(take, tell) {
  const button = document.getElementById("camera"), dialog = document.getElementById("viewfinder");
  const video = dialog.querySelector("video");
  if (!navigator.mediaDevices?.getUserMedia) {
    button.hidden = true;
    document.getElementById("no-camera").hidden = false;
    return;
  }
  let stream = null;
  const stop = () => {
    stream?.getTracks().forEach((track) => track.stop());
    stream = video.srcObject = null;
  };
  dialog.addEventListener("close", stop);
  button.addEventListener("click", async () => {
    button.disabled = true; // a second stream would have nobody to stop it
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
    } catch (error) {
      const refused = error.name === "NotAllowedError";
      return tell(refused ? "The camera was not allowed. Allow it in the browser's settings for this page." : "No camera was found.");
    } finally {
      button.disabled = false;
    }
    video.srcObject = stream;
    dialog.showModal();
    await video.play().catch(() => {});
  });
  document.getElementById("cancel").addEventListener("click", () => dialog.close());
  document.getElementById("shoot").addEventListener("click", async () => {
    if (!video.videoWidth) return;
    const made = await jpeg(canvasOf(video, video.videoWidth, video.videoHeight), 0.92);
    dialog.close();
    take(made, "camera image");
  });
}
