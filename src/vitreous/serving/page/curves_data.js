// What the server knows of the runs, kept up to date: asked for every two seconds while somebody looks, only what is new.

const EVERY = 2000, LIST_EVERY = 4000, LONGEST_WAIT = 60000, PATIENCE = 30000;

async function asked(address) {
  const answer = await fetch(address, { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
  let said = null;
  try { said = await answer.json(); } catch { /* an answer that is no JSON is an error below */ }
  if (answer.ok && said) return said;
  const error = new Error([(said && said.error) || "the server answered " + answer.status, said && said.hint].filter(Boolean).join("; "));
  error.gone = answer.status === 404;
  throw error;
}

// A run's name is a path, and each part of it may hold anything.
const address = (name, after) => "/runs/" + name.split("/").map(encodeURIComponent).join("/") + (after >= 0 ? "?after=" + after : "");

class Run {
  constructor(name) {
    Object.assign(this, { name, config: {}, mistakes: [], mistakesOf: null, series: new Map(), generation: null, last: -1, about: null, gone: false, trouble: "" });
  }

  // Points of a step that is known already replace it: evaluation comes later than training, at the same step.
  take(answer, whole) {
    if (whole) {
      this.series = new Map();
      this.last = -1;
      Object.assign(this, { config: answer.config || {}, mistakes: answer.mistakes || [], mistakesOf: answer.mistakes_of || null });
    }
    this.generation = answer.generation;
    this.about = answer;
    for (const one of answer.series) {
      const id = one.key + "\n" + one.split;
      let there = this.series.get(id);
      if (!there) this.series.set(id, there = { key: one.key, split: one.split, points: [], means: one.means || [] });
      for (const point of one.points) {
        let at = there.points.length;
        while (at > 0 && there.points[at - 1][0] > point[0]) at -= 1;
        if (at > 0 && there.points[at - 1][0] === point[0]) there.points[at - 1] = point; else there.points.splice(at, 0, point);
        if (point[0] > this.last) this.last = point[0];
      }
    }
  }

  get(key, split) { return this.series.get(key + "\n" + split); }
}

export class Watch {
  // `changed` hears of every change: what was listed, and which runs have new points.
  constructor(changed) {
    Object.assign(this, { changed, list: [], leftOut: 0, known: new Map(), chosen: [], listed: 0, failures: 0, trouble: "", wait: EVERY, timer: 0, nowhere: "", busy: false, again: false });
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.pause(); else this.now(); });
  }

  choose(names) {
    this.chosen = names;
    for (const name of names) if (!this.known.has(name)) this.known.set(name, new Run(name));
    for (const name of [...this.known.keys()]) if (!names.includes(name)) this.known.delete(name);
    this.now();
  }

  pause() { clearTimeout(this.timer); this.timer = 0; this.changed(new Set()); }

  now() {
    if (this.busy) { this.again = true; return; }
    clearTimeout(this.timer);
    this.tick();
  }

  async tick() {
    this.busy = true;
    this.again = false;
    const changed = new Set();
    try {
      if (!this.listed || Date.now() - this.listed > LIST_EVERY || this.failures) await this.look();
      const found = await Promise.all(this.chosen.map((name) => this.ask(name)));
      found.forEach((fresh, k) => { if (fresh) changed.add(this.chosen[k]); });
      this.failures = 0;
      this.trouble = "";
    } catch (error) {
      this.failures += 1;
      this.trouble = error.name === "TimeoutError" ? "the server takes too long" : error.gone ? error.message : "the server does not answer";
    }
    this.wait = Math.min(LONGEST_WAIT, EVERY * 2 ** this.failures);
    this.busy = false;
    this.changed(changed);
    const behind = this.chosen.some((name) => this.known.get(name)?.about?.complete === false);
    clearTimeout(this.timer);
    if (this.again) this.now();
    else if (!document.hidden) this.timer = setTimeout(() => this.now(), behind && !this.failures ? 50 : this.wait);
  }

  async look() {
    this.nowhere = "";
    const answer = await asked("/runs").catch((error) => {
      if (error.gone) this.nowhere = error.message[0].toUpperCase() + error.message.slice(1) + ".";  // this server watches no folder
      throw error;
    });
    this.list = answer.runs;
    this.leftOut = answer.left_out || 0;
    this.listed = Date.now();
  }

  // Whether there was anything new. A run that rests is not asked again until the list says that it has changed.
  async ask(name) {
    const run = this.known.get(name);
    if (!run) return false;
    const row = this.list.find((one) => one.name === name), about = run.about;
    const rests = about && about.complete && about.state !== "running" && (!row || (row.updated === about.updated && row.state === about.state));
    if (rests || run.gone && !row) return false;
    try {
      const after = about ? Math.max(-1, run.last - 1) : -1;
      let answer = await asked(address(name, after)), whole = after < 0;
      const caughtUp = !whole && !about.complete && answer.complete;  // a long file came in parts: now it comes thinned evenly
      if (!whole && (answer.generation !== run.generation || answer.mistakes_at !== about.mistakes_at || caughtUp)) {
        answer = await asked(address(name, -1));
        whole = true;
      }
      const fresh = whole || run.gone || answer.state !== about.state || answer.series.some((one) => one.points.some((point) => point[0] > run.last || !has(run, one, point)));
      run.take(answer, whole);
      Object.assign(run, { gone: false, trouble: "" });
      if (row) for (const key of Object.keys(row)) row[key] = answer[key];  // so that the table is as new as the curves
      return fresh;
    } catch (error) {
      if (!error.gone) throw error;
      const news = !run.gone;
      Object.assign(run, { gone: true, trouble: error.message });
      return news;
    }
  }
}

function has(run, one, point) {
  const there = run.get(one.key, one.split);
  return there && there.points.some((old) => old[0] === point[0] && old[1] === point[1]);
}
