// One answer while it streams: its coloured tokens, and the counters beside it.

class Answer {
  constructor(box) {
    this.box = box;
    this.text = "";
    this.count = 0;
    this.rounds = 0; // verify forwards: each ends with a token of the target's own
    this.origins = new Map(); // by name: the legend's rows
    this.first = null;
    this.last = null;
    this.record = []; // [milliseconds, pieces], for the race's replay
    this.stats = null;
  }

  add(choice, at) {
    const all = choice.trace.pieces.map(([text, depth], index) => ({ text, depth, ...originOf(depth, choice.trace.sources[index]) }));
    const pieces = all.filter(({ text }) => text !== "");
    const fresh = all.length - (choice.finish_reason ? 1 : 0);
    this.first ??= at;
    this.last = at;
    this.record.push([at, pieces]);
    for (const origin of all.slice(0, fresh)) {
      const row = this.origins.get(origin.name) ?? { ...origin, tokens: 0 };
      this.count++;
      this.origins.set(origin.name, { ...row, tokens: row.tokens + 1 });
      if (origin.depth === 0) this.rounds++;
    }
    this.show(pieces);
  }

  show(pieces) {
    for (const { text, depth, name, colour } of pieces) {
      const space = text.match(/^\s*/)[0], token = document.createElement("span");
      this.text += text;
      this.box.append(space);
      if (space === text) continue;
      token.textContent = text.slice(space.length);
      token.style.background = colour;
      token.title = depth ? `${name}: accepted at depth ${depth}` : "the target's own token";
      token.dataset.origin = depth;
      this.box.append(token);
    }
  }

  finish(usage) { this.stats = usage ? usage.speculation : null; }

  get tpot() {
    if (this.stats && this.stats.tpot_ms) return this.stats.tpot_ms;
    return this.count > 1 ? (this.last - this.first) / (this.count - 1) : null;
  }

  get tau() {
    if (this.stats) return this.stats.tau;
    return this.rounds > 1 ? (this.count - 1) / (this.rounds - 1) : null;
  }
}

function showCounters(answer) {
  const put = (id, value, digits) => { byId(id).textContent = value === null ? "–" : value.toFixed(digits); };
  put("tpot", answer.tpot, 1);
  put("tau", answer.tau, 2);
  byId("count").textContent = answer.count;
  const rows = [...answer.origins.values()].sort((a, b) => a.place - b.place || a.name.localeCompare(b.name));
  byId("legend").replaceChildren(...rows.map(({ name, colour, tokens }) => {
    const row = document.createElement("div"), share = (100 * tokens) / answer.count;
    const chip = document.createElement("span"), meter = document.createElement("span"), number = document.createElement("span");
    chip.className = "chip"; chip.textContent = name; chip.style.background = colour;
    meter.className = "meter"; meter.append(document.createElement("i")); meter.firstChild.style.width = share + "%";
    number.className = "share"; number.textContent = share.toFixed(0) + " %";
    row.append(chip, meter, number);
    return row;
  }));
}
